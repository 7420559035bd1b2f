"""Read access to the console, for pages and topics alike.

Rules
1. Staff and members of all projects see everything. Views of all projects at once (their charts,
   decisions, workers, the audit) are for them alone.
2. Members of some projects see the objects of these projects and the shared capacity: nodes, pools,
   limits. Holdings of other projects are amounts without a name.
3. Objects of a project without membership are 404, not 403: their existence is not disclosed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from django.db.models import Model, QuerySet

from tangram_web.pools.models import Project

Row = TypeVar("Row", bound=Model)


@dataclass(frozen=True)
class Sight:
    """The projects that a user may see."""

    #: Names of projects, in order; None: all projects, future ones included.
    projects: tuple[str, ...] | None = None

    @property
    def everything(self) -> bool:
        """Whether views of all projects at once may be seen."""
        return self.projects is None

    def sees(self, project: str) -> bool:
        """Return whether objects of ``project`` may be seen."""
        return self.projects is None or project in self.projects

    def of(self, rows: QuerySet[Row]) -> QuerySet[Row]:
        """Select the ``rows`` that may be seen, by their column ``project``."""
        if self.projects is None:
            return rows
        if len(self.projects) == 1:
            return rows.filter(project=self.projects[0])  # served in order by an index
        return rows.filter(project__in=self.projects)

    def among(self, projects: Iterable[str]) -> list[str]:
        """Return the ``projects`` that may be seen."""
        return [project for project in projects if self.sees(project)]


def sight_of(user: Any) -> Sight | None:
    """Return what ``user`` may see; None without access to any project."""
    if user is None or not user.is_active:
        return None
    if user.is_staff:
        return Sight()
    if not user.is_authenticated or user.pk is None:
        return None
    mine = Project.objects.filter(memberships__user_id=user.pk).order_by("name")
    projects = tuple(mine.values_list("name", flat=True))
    if not projects:
        return None
    return Sight(projects if Project.objects.exclude(name__in=projects).exists() else None)


def may_watch(user: Any) -> bool:
    """Return whether ``user`` may see views of all projects at once."""
    sight = sight_of(user)
    return sight is not None and sight.everything
