"""History over REST: read only, each caller its own project."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_view
from rest_framework.exceptions import ValidationError
from rest_framework.generics import get_object_or_404
from rest_framework.mixins import ListModelMixin, RetrieveModelMixin
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from domain.principals import Principal, Scope
from tangram_web.records import selectors
from tangram_web.records.api.filters import (
    ActionFilter,
    NodeFilter,
    TaskFilter,
    TrajectoryFilter,
)
from tangram_web.records.api.serializers import (
    ActionListView,
    NodeView,
    TaskView,
    TrajectoryView,
)
from tangram_web.records.models import ActionRecord, NodeRecord, TaskRecord, TrajectoryRecord

NAME_IN_PATH = r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,127}"
_PROJECT = OpenApiParameter(
    "project",
    str,
    description="For tokens bound to no project: whose object; without it, project `default`.",
)


class HistoryViewSet(ListModelMixin, GenericViewSet[Any]):
    """A list of rows that the caller may see."""

    read_scope = Scope.READ
    lookup_value_regex = NAME_IN_PATH

    @property
    def principal(self) -> Principal:
        """The caller."""
        principal: Principal = self.request.auth  # type: ignore[assignment]
        return principal


class ActionViewSet(HistoryViewSet):
    """Actions. Single ones are answered by the gateway, which knows those still alive."""

    queryset = ActionRecord.objects.all()
    serializer_class = ActionListView
    filterset_class = ActionFilter

    def get_queryset(self) -> QuerySet[ActionRecord]:
        """Select what the caller may see."""
        return selectors.actions_seen_by(self.principal)


class OwnedViewSet(HistoryViewSet):
    """Rows that trainers name: a name is unique within its project."""

    lookup_field = "name"
    lookup_url_kwarg = "id"

    def retrieve(self, request: Request, **path: str) -> Response:
        """Return one by its name."""
        project = self.principal.project or request.query_params.get("project", "default")
        if "\0" in project:
            raise ValidationError({"project": ["this is not a name"]})
        row = get_object_or_404(self.get_queryset(), project=project, name=path["id"])
        return Response(self.get_serializer(row).data)


@extend_schema_view(retrieve=extend_schema(parameters=[_PROJECT]))
class TrajectoryViewSet(OwnedViewSet):
    """Trajectories."""

    queryset = TrajectoryRecord.objects.all()
    serializer_class = TrajectoryView
    filterset_class = TrajectoryFilter

    def get_queryset(self) -> QuerySet[TrajectoryRecord]:
        """Select what the caller may see."""
        return selectors.trajectories_seen_by(self.principal)


@extend_schema_view(retrieve=extend_schema(parameters=[_PROJECT]))
class TaskViewSet(OwnedViewSet):
    """Tasks."""

    queryset = TaskRecord.objects.all()
    serializer_class = TaskView
    filterset_class = TaskFilter

    def get_queryset(self) -> QuerySet[TaskRecord]:
        """Select what the caller may see."""
        return selectors.tasks_seen_by(self.principal)


class NodeViewSet(RetrieveModelMixin, HistoryViewSet):
    """Nodes: they belong to no project."""

    queryset = NodeRecord.objects.order_by("name")
    serializer_class = NodeView
    filterset_class = NodeFilter
