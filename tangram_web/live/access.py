"""Who may see what of the console. Pages and topics ask here and nowhere else.

Rules
1. Staff, and members of every project there is, see everything. They alone see what shows all
   projects at once: charts of all of them, decisions, workers, the audit.
2. Members of some projects see these projects' objects, and what there is to share: nodes, pools,
   limits. What others hold of it is an amount without a name.
3. Whoever is nothing in a project is not told that it exists: its objects are 404, not 403.
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
    """What somebody may see."""

    #: Names of projects, in order; None: all of them, and those that are still to come.
    projects: tuple[str, ...] | None = None

    @property
    def everything(self) -> bool:
        """Whether what shows all projects at once may be seen."""
        return self.projects is None

    def sees(self, project: str) -> bool:
        """Say whether objects of ``project`` may be seen."""
        return self.projects is None or project in self.projects

    def of(self, rows: QuerySet[Row]) -> QuerySet[Row]:
        """Select those of ``rows`` that may be seen; they have a column ``project``."""
        if self.projects is None:
            return rows
        if len(self.projects) == 1:
            return rows.filter(project=self.projects[0])  # served in order by an index
        return rows.filter(project__in=self.projects)

    def among(self, projects: Iterable[str]) -> list[str]:
        """Return those of ``projects`` that may be seen."""
        return [project for project in projects if self.sees(project)]


def sight_of(user: Any) -> Sight | None:
    """Return what ``user`` may see; None for somebody who may see nothing."""
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
    """Say whether ``user`` may see what shows all projects at once."""
    sight = sight_of(user)
    return sight is not None and sight.everything
