"""REST resources of the history, read only: actions, trajectories, tasks and nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from time import time
from typing import Any, Final

import django_filters as filters
import msgspec
from django.db.models import QuerySet
from django_filters.rest_framework import FilterSet
from drf_spectacular.extensions import OpenApiSerializerExtension
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.generics import get_object_or_404
from rest_framework.mixins import ListModelMixin, RetrieveModelMixin
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from contract.responses import ActionResponse
from domain.action import ActionState, Kind, Outcome
from domain.errors import Unavailable
from domain.principals import Principal, Scope
from tangram_web.explorer.conditions import all_rows_of
from tangram_web.explorer.fields import ACTIONS, TASKS, TRAJECTORIES, Tab
from tangram_web.explorer.language import QueryError, parse
from tangram_web.lib import scheduler_client
from tangram_web.lib.instants import check_in_calendar
from tangram_web.live.access import Sight
from tangram_web.records import selectors
from tangram_web.records.api.sorted_lists import SortedListMixin, sort_of
from tangram_web.records.models import (
    ActionRecord,
    NodeAvailability,
    NodeRecord,
    TaskRecord,
    TrajectoryRecord,
    TrajectoryRecordState,
)
from tangram_web.records.selectors import view_of

NAME_IN_PATH = r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,127}"
_PROJECT = OpenApiParameter(
    "project",
    str,
    description="Project of the object, for tokens of no project. Default: `default`.",
)


#: Query parameter of the list of actions, and its values: members that cost more than a row.
INCLUDE: Final = "include"
RESULT: Final = "result"
WAITING: Final = "waiting"
#: Queued actions of a page whose reason the scheduler is asked for.
MOST_EXPLAINED: Final = 50
_INCLUDE = OpenApiParameter(
    INCLUDE,
    str,
    description="`result`: whole results, not the exit code alone; `waiting`: why queued actions wait,"
    f" of the first {MOST_EXPLAINED} on the page; both: `result,waiting`.",
)


class ActionListView(serializers.BaseSerializer[ActionRecord]):
    """An action as the hot endpoints show it; a list has the exit code alone of ``result``."""

    def to_representation(self, instance: ActionRecord) -> dict[str, Any]:
        """Render a row as `ActionResponse`."""
        view = view_of(instance, with_result=RESULT in self.context.get(INCLUDE, ()))
        shown: dict[str, Any] = msgspec.to_builtins(view)
        return shown


class _ActionListSchema(OpenApiSerializerExtension):  # type: ignore[no-untyped-call]
    """Refers to the schema of the hot endpoints (`tangram_web/lib/schema.py`)."""

    target_class = ActionListView

    def map_serializer(self, auto_schema: Any, direction: Any) -> dict[str, Any]:
        """Return a placeholder, which the struct's own schema replaces."""
        return {"type": "object", "properties": {"id": {"type": "string"}}}

    def get_name(self, auto_schema: Any, direction: Any) -> str:
        """Return the struct's name."""
        return ActionResponse.__name__


class _Totals(serializers.Serializer[Any]):
    actions = serializers.IntegerField(help_text="Actions accepted.")
    finished = serializers.IntegerField(help_text="Actions finished.")
    external_seconds = serializers.FloatField(help_text="Sum of the ACT of finished actions.")


class TaskView(_Totals):
    """A task and its totals."""

    id = serializers.CharField(source="name")
    project = serializers.CharField()
    pool = serializers.CharField()
    metadata = serializers.DictField()
    opened_at = serializers.DateTimeField()


class TrajectoryView(_Totals):
    """A trajectory and its totals."""

    id = serializers.CharField(source="name")
    project = serializers.CharField()
    task = serializers.CharField()
    pool = serializers.CharField()
    node = serializers.CharField(allow_null=True)
    state = serializers.ChoiceField(choices=TrajectoryRecordState.choices)
    environment = serializers.DictField(allow_null=True)
    metadata = serializers.DictField()
    opened_at = serializers.DateTimeField()
    finished_at = serializers.DateTimeField(allow_null=True)
    environment_removed_at = serializers.DateTimeField(allow_null=True)


class NodeView(serializers.Serializer[Any]):
    """A node."""

    name = serializers.CharField()
    pool = serializers.CharField()
    state = serializers.ChoiceField(choices=NodeAvailability.choices)
    finishing = serializers.BooleanField(
        help_text="It is drained, and trajectories that have their environment there continue."
    )
    incarnation = serializers.IntegerField()
    resources = serializers.DictField()
    isolation = serializers.CharField()
    oversubscribed = serializers.BooleanField()
    hostname = serializers.CharField()
    version = serializers.CharField()
    joined_at = serializers.DateTimeField()
    lost_at = serializers.DateTimeField(allow_null=True)


def _queried(rows: QuerySet[Any], tab: Tab, text: str) -> QuerySet[Any]:
    """Select by a query of the explorer. Raises ValidationError, which names the terms and their cures."""
    try:
        query = parse(tab, text)
    except QueryError as error:
        raise ValidationError({"q": [str(each) for each in error.mistakes]}) from None
    return rows & all_rows_of(tab, query, Sight(), time())


def _query_of(tab: Tab) -> filters.CharFilter:
    """Return the filter ``q`` of a list."""
    return filters.CharFilter(
        method="by_query",
        help_text=f"A filter of the console's explorer, as in `{tab.tries[0]} {tab.tries[1]}`: docs/explorer.md.",
    )


def _choices(values: Any) -> list[tuple[str, str]]:
    return [(value.value, value.value) for value in values]


class ActionFilter(FilterSet):
    """Narrows the list of actions."""

    q = _query_of(ACTIONS)
    state = filters.ChoiceFilter(choices=_choices(ActionState), method="in_state")
    outcome = filters.ChoiceFilter(choices=_choices(Outcome))
    kind = filters.ChoiceFilter(choices=_choices(Kind))
    task = filters.CharFilter()
    trajectory = filters.CharFilter()
    node = filters.CharFilter()
    door = filters.CharFilter(
        method="by_door",
        help_text=f"As in `e2b`; `{selectors.NATIVE}`: submitted to this API itself.",
    )
    since = filters.IsoDateTimeFilter(
        field_name="submitted_at", lookup_expr="gte", validators=[check_in_calendar]
    )

    class Meta:
        model = ActionRecord
        fields = ("state", "outcome", "kind", "task", "trajectory", "node", "door", "since", "q")

    def by_query(self, rows: QuerySet[Any], name: str, value: str) -> QuerySet[Any]:
        """Select by a filter of the explorer."""
        return _queried(rows, ACTIONS, value)

    def by_door(self, rows: QuerySet[ActionRecord], name: str, value: str) -> QuerySet[Any]:
        """Select by the door that an action came through."""
        return selectors.through_door(rows, value)

    def in_state(self, rows: QuerySet[ActionRecord], name: str, value: str) -> QuerySet[Any]:
        """Select by state; a live state excludes finished rows, which makes the partial index apply."""
        rows = rows.filter(state=value)
        return rows if value == ActionState.FINISHED else rows.filter(finished_seq=None)


class TrajectoryFilter(FilterSet):
    """Narrows the list of trajectories."""

    q = _query_of(TRAJECTORIES)
    state = filters.ChoiceFilter(choices=TrajectoryRecordState.choices)
    task = filters.CharFilter()
    node = filters.CharFilter()

    class Meta:
        model = TrajectoryRecord
        fields = ("state", "task", "node", "q")

    def by_query(self, rows: QuerySet[Any], name: str, value: str) -> QuerySet[Any]:
        """Select by a filter of the explorer."""
        return _queried(rows, TRAJECTORIES, value)


class TaskFilter(FilterSet):
    """Narrows the list of tasks."""

    q = _query_of(TASKS)
    pool = filters.CharFilter()

    class Meta:
        model = TaskRecord
        fields = ("pool", "q")

    def by_query(self, rows: QuerySet[Any], name: str, value: str) -> QuerySet[Any]:
        """Select by a filter of the explorer."""
        return _queried(rows, TASKS, value)


class NodeFilter(FilterSet):
    """Narrows the list of nodes."""

    state = filters.ChoiceFilter(choices=NodeAvailability.choices)
    pool = filters.CharFilter()

    class Meta:
        model = NodeRecord
        fields = ("state", "pool")


class HistoryViewSet(ListModelMixin, GenericViewSet[Any]):
    """A list of the rows that the caller may see."""

    read_scope = Scope.READ
    lookup_value_regex = NAME_IN_PATH

    @property
    def principal(self) -> Principal:
        """The caller."""
        principal: Principal = self.request.auth  # type: ignore[assignment]
        return principal


@extend_schema_view(list=extend_schema(parameters=[_INCLUDE, sort_of(ACTIONS)]))
class ActionViewSet(SortedListMixin, HistoryViewSet):
    """Actions. The gateway serves single ones, since it knows the live ones."""

    tab = ACTIONS
    own_parameters = frozenset({INCLUDE})
    queryset = ActionRecord.objects.all()
    serializer_class = ActionListView
    filterset_class = ActionFilter

    def get_queryset(self) -> QuerySet[ActionRecord]:
        """Select the rows that the caller may see."""
        return selectors.actions_seen_by(self.principal, with_result=RESULT in self.included)

    @property
    def included(self) -> frozenset[str]:
        """Members that the caller asks for. Raises ValidationError."""
        asked = frozenset(filter(None, self.request.query_params.get(INCLUDE, "").split(",")))
        if not asked <= {RESULT, WAITING}:
            raise ValidationError({INCLUDE: [f"name {RESULT}, {WAITING}, or both"]})
        return asked

    def get_serializer_context(self) -> dict[str, Any]:
        """Let the serializer know what to include."""
        return {**super().get_serializer_context(), INCLUDE: self.included}

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """List actions; with ``include=waiting`` the scheduler gives the reasons of those that wait."""
        response = super().list(request, *args, **kwargs)
        if WAITING in self.included:
            self._explain(response.data["results"])
        return response

    def _explain(self, rows: Sequence[dict[str, Any]]) -> None:
        """Add why the first `MOST_EXPLAINED` queued actions wait; without a scheduler, nothing."""
        queued = {row["id"]: row for row in rows if row["state"] == ActionState.QUEUED}
        names = list(queued)[:MOST_EXPLAINED]
        with contextlib.suppress(Unavailable):
            for name, live in scheduler_client.live_actions(
                names, self.principal.project or ""
            ).items():
                queued[name]["waiting"] = msgspec.to_builtins(live.waiting)


class OwnedViewSet(HistoryViewSet):
    """Rows with a name that is unique within its project."""

    lookup_field = "name"
    lookup_url_kwarg = "id"

    def retrieve(self, request: Request, **path: str) -> Response:
        """Return one by its name."""
        project = self.principal.project or request.query_params.get("project", "default")
        if "\0" in project:
            raise ValidationError({"project": ["not a name"]})
        row = get_object_or_404(self.get_queryset(), project=project, name=path["id"])
        return Response(self.get_serializer(row).data)


@extend_schema_view(
    list=extend_schema(parameters=[sort_of(TRAJECTORIES)]),
    retrieve=extend_schema(parameters=[_PROJECT]),
)
class TrajectoryViewSet(SortedListMixin, OwnedViewSet):
    """Trajectories."""

    tab = TRAJECTORIES
    queryset = TrajectoryRecord.objects.all()
    serializer_class = TrajectoryView
    filterset_class = TrajectoryFilter

    def get_queryset(self) -> QuerySet[TrajectoryRecord]:
        """Select the rows that the caller may see."""
        return selectors.trajectories_seen_by(self.principal)


@extend_schema_view(
    list=extend_schema(parameters=[sort_of(TASKS)]), retrieve=extend_schema(parameters=[_PROJECT])
)
class TaskViewSet(SortedListMixin, OwnedViewSet):
    """Tasks."""

    tab = TASKS
    queryset = TaskRecord.objects.all()
    serializer_class = TaskView
    filterset_class = TaskFilter

    def get_queryset(self) -> QuerySet[TaskRecord]:
        """Select the rows that the caller may see."""
        return selectors.tasks_seen_by(self.principal)


class NodeViewSet(RetrieveModelMixin, HistoryViewSet):
    """Nodes: they belong to no project."""

    queryset = NodeRecord.objects.order_by("name")
    serializer_class = NodeView
    filterset_class = NodeFilter
