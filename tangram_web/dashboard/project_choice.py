"""Choice of the project that a live page shows: one, or all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from django.http import QueryDict

from tangram_web.live.access import Sight
from tangram_web.pools.models import Project

#: Most projects to choose from; a page of any other is opened by its address.
CHOICES: Final = 200


@dataclass(frozen=True)
class ProjectChoice:
    """The chosen project, and the others that the reader may choose."""

    #: Empty: all projects at once.
    project: str
    choices: list[str]
    #: Whether all projects at once may be chosen.
    everything: bool

    def sight(self, sight: Sight) -> Sight:
        """Return ``sight``, limited to the chosen project."""
        return Sight((self.project,)) if self.project else sight


def project_choice_of(sight: Sight, query: QueryDict) -> ProjectChoice | None:
    """Return the choice in a query (``?project=``); None for a project that may not be seen.

    Without one, a reader who may not see all projects gets the first of their own.
    """
    names = sight.projects
    if names is None:
        names = tuple(Project.objects.order_by("name").values_list("name", flat=True)[:CHOICES])
    first = "" if sight.everything else names[0]
    project = query.get("project", "") or first
    if project and project not in names:
        return None
    return ProjectChoice(project, list(names), sight.everything)


def project_of(sight: Sight, query: QueryDict) -> str | None:
    """Return the chosen project, empty for all, None if it may not be seen; one query at most."""
    wanted = query.get("project", "")
    if sight.projects is not None:
        wanted = wanted or sight.projects[0]
        return wanted if wanted in sight.projects else None
    # PostgreSQL refuses U+0000.
    known = "\0" not in wanted and Project.objects.filter(name=wanted).exists() if wanted else True
    return wanted if known else None
