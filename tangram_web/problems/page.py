"""What the Overview shows of problems: the rows of its template, and the verbs that the reader may use."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.http import HttpRequest

from tangram_web.accounts.access import role_everywhere, roles_of
from tangram_web.accounts.models import Role
from tangram_web.live.access import Sight
from tangram_web.problems.facts import Condition
from tangram_web.problems.reading import ProblemRow, ProblemsView, problems_for


@dataclass(frozen=True)
class ShownProblem:
    """One row of the list."""

    row: ProblemRow
    #: Whether the reader may acknowledge it, and is shown its verb.
    may_act: bool

    @property
    def id(self) -> str:
        """Return what identifies the problem."""
        return self.row.id

    @property
    def kind(self) -> str:
        """Return the key of its kind."""
        return self.row.kind

    @property
    def state(self) -> str:
        """Return its state."""
        return self.row.state

    @property
    def severity(self) -> str:
        """Return its severity."""
        return self.row.severity

    @property
    def condition(self) -> Condition:
        """Return what it says."""
        return self.row.condition

    @property
    def is_over(self) -> bool:
        """Return whether it is cleared."""
        return self.row.is_over

    @property
    def acknowledged_by(self) -> str:
        """Return who acknowledged it; empty: it is not acknowledged."""
        return self.row.acknowledged_by

    @property
    def note(self) -> str:
        """Return the note of the acknowledgement."""
        return self.row.note

    @property
    def affected(self) -> str:
        """Return the number of actions as text."""
        return f"{self.row.condition.affected:,}"

    @property
    def since(self) -> str:
        """Return since when it is there, as seconds for scripts."""
        return f"{self.row.since:.0f}"

    @property
    def cleared_at(self) -> str:
        """Return when it was cleared, as seconds for scripts; empty while it is there."""
        return "" if self.row.cleared_at is None else f"{self.row.cleared_at:.0f}"

    @property
    def since_clock(self) -> str:
        """Return the time of day, in UTC."""
        return f"{datetime.fromtimestamp(self.row.since, UTC):%H:%M:%S}"

    @property
    def since_instant(self) -> str:
        """Return the instant."""
        return datetime.fromtimestamp(self.row.since, UTC).isoformat()


def situation_of(request: HttpRequest, sight: Sight, project: str) -> dict[str, Any]:
    """Return the context of the situation: health, rows, and their shape."""
    view = problems_for(sight, project)
    rows = shown(request, view)
    return {"situation": view, "rows": rows, "shape": shape_of(view)}


def shown(request: HttpRequest, view: ProblemsView) -> list[ShownProblem]:
    """Return the rows with what the reader may do; at most one query."""
    everywhere = role_everywhere(request.user) is not None
    projects = {} if everywhere or not view.rows else roles_of(request.user, Role.OPERATOR)
    return [
        ShownProblem(row, may_act=everywhere or row.condition.project in projects)
        for row in view.rows
    ]


def shape_of(view: ProblemsView) -> str:
    """Return what changes when the list has other rows, another order or other states."""
    rows = [f"{row.id} {row.severity} {row.state}" for row in view.rows]
    return "|".join([view.health.state.value, *rows])
