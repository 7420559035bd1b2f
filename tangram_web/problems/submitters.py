"""Submitters of projects: who or what submits the actions of a project, where that is known.

Actions do not say who submitted them; tokens do. The submitter of a project is known where one of its tokens with scope
``submit`` alone was used lately, and no token of all projects with that scope: it is the account that the token acts for,
or the token. What an administrator submits for another project is not distinguished.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta
from typing import Final

from domain.principals import Scope
from tangram_web.pools.models import Token

#: A token that was used within this time submits.
LATELY: Final = timedelta(days=7)
#: Above so many tokens no submitter is known: this is read again and again.
MOST_TOKENS: Final = 2000


def submitters(now: datetime) -> dict[str, str]:
    """Return project → its submitter, as a problem names it; projects without a known one are left out."""
    used = Token.objects.filter(last_used_at__gte=now - LATELY).order_by("name")
    rows = list(used.values_list("project", "name", "user__username", "scopes")[: MOST_TOKENS + 1])
    by_project: defaultdict[str | None, set[str]] = defaultdict(set)
    for project, name, user, scopes in rows:
        if Scope.SUBMIT.value in scopes:
            by_project[project].add(user or f"token {name}")
    if by_project.pop(None, None) or len(rows) > MOST_TOKENS:
        return {}
    return {str(project): min(names) for project, names in by_project.items() if len(names) == 1}
