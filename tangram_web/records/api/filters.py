"""Which rows a list shows."""

from __future__ import annotations

from typing import Any

import django_filters as filters
from django.db.models import QuerySet
from django_filters.rest_framework import FilterSet

from domain.action import ActionState, Kind, Outcome
from tangram_web.lib.instants import check_in_calendar
from tangram_web.records.models import (
    ActionRecord,
    NodeRecord,
    NodeState,
    TaskRecord,
    TrajectoryRecord,
    TrajectoryState,
)


def _choices(values: Any) -> list[tuple[str, str]]:
    return [(value.value, value.value) for value in values]


class ActionFilter(FilterSet):
    """Narrows the list of actions."""

    state = filters.ChoiceFilter(choices=_choices(ActionState), method="in_state")
    outcome = filters.ChoiceFilter(choices=_choices(Outcome))
    kind = filters.ChoiceFilter(choices=_choices(Kind))
    task = filters.CharFilter()
    trajectory = filters.CharFilter()
    node = filters.CharFilter()
    since = filters.IsoDateTimeFilter(
        field_name="submitted_at", lookup_expr="gte", validators=[check_in_calendar]
    )

    class Meta:
        model = ActionRecord
        fields = ("state", "outcome", "kind", "task", "trajectory", "node", "since")

    def in_state(self, rows: QuerySet[ActionRecord], name: str, value: str) -> QuerySet[Any]:
        """Say that live rows are unfinished, too: only then does their small index apply."""
        rows = rows.filter(state=value)
        return rows if value == ActionState.FINISHED else rows.filter(finished_seq=None)


class TrajectoryFilter(FilterSet):
    """Narrows the list of trajectories."""

    state = filters.ChoiceFilter(choices=TrajectoryState.choices)
    task = filters.CharFilter()
    node = filters.CharFilter()

    class Meta:
        model = TrajectoryRecord
        fields = ("state", "task", "node")


class TaskFilter(FilterSet):
    """Narrows the list of tasks."""

    pool = filters.CharFilter()

    class Meta:
        model = TaskRecord
        fields = ("pool",)


class NodeFilter(FilterSet):
    """Narrows the list of nodes."""

    state = filters.ChoiceFilter(choices=NodeState.choices)
    pool = filters.CharFilter()

    class Meta:
        model = NodeRecord
        fields = ("state", "pool")
