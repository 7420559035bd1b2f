"""Which project a live page is about: one that was chosen, or all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from django.http import QueryDict

from tangram_web.live.access import Sight
from tangram_web.pools.models import Project

#: Projects to choose from, at most; others are reached by the address.
CHOICES: Final = 200


@dataclass(frozen=True)
class Scope:
    """What the live topics of a page are about."""

    #: Empty: all projects at once.
    project: str
    #: What else may be chosen; all projects at once where ``everything`` says so.
    choices: list[str]
    everything: bool


def scope_of(sight: Sight, query: QueryDict) -> Scope | None:
    """Return what an address asks for (``?project=``); None where that is not to be seen.

    Who does not see everything and asks for nothing gets the first of his projects.
    """
    names = sight.projects
    if names is None:
        names = tuple(Project.objects.order_by("name").values_list("name", flat=True)[:CHOICES])
    first = "" if sight.everything else names[0]
    project = query.get("project", "") or first
    if project and project not in names:
        return None
    return Scope(project, list(names), sight.everything)


def project_of(sight: Sight, query: QueryDict) -> str | None:
    """Return the project of `scope_of`, empty for all, None for none to be seen; one query at most."""
    wanted = query.get("project", "")
    if sight.projects is not None:
        wanted = wanted or sight.projects[0]
        return wanted if wanted in sight.projects else None
    # PostgreSQL refuses U+0000.
    known = "\0" not in wanted and Project.objects.filter(name=wanted).exists() if wanted else True
    return wanted if known else None
