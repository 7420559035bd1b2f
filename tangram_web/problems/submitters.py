"""Submitters of projects: the token or account that submitted all of a project's latest actions, where it is one alone."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from tangram_web.records.models import ActionRecord

#: Actions that are looked at, of all projects: this is read again and again.
LATEST: Final = 1000


def submitters() -> dict[str, str]:
    """Return project → its submitter; projects with several, or with actions of versions that recorded none, are left out."""
    rows = ActionRecord.objects.order_by("-pk").values_list("project", "submitted_by")[:LATEST]
    found: defaultdict[str, set[str | None]] = defaultdict(set)
    for project, name in rows:
        found[project].add(name)
    return {project: str(*names) for project, names in found.items() if len(names) == 1 and None not in names}  # fmt: skip
