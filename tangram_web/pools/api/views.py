"""REST resources of the configuration. Each verb parses, calls one service and renders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import GenericViewSet

from domain.errors import NotFound
from domain.principals import Principal, Scope
from tangram_web.lib.access import HasScope
from tangram_web.pools import services
from tangram_web.pools.api.node_serializers import (
    DrainBody,
    NodeDrainView,
    NodeForgottenView,
    NodeGroupsView,
)
from tangram_web.pools.api.serializers import (
    DeclaredFleetView,
    FleetBody,
    NewFleetBody,
    PoolBody,
    PoolPatch,
    PoolView,
    ProjectBody,
    ProjectPatch,
    ProjectView,
    ResourceBody,
    ResourceLimit,
    ResourceView,
)
from tangram_web.pools.authentication import actor_of
from tangram_web.pools.group_reports import node_group_reports
from tangram_web.pools.manifests import spec_as_data
from tangram_web.pools.models import FleetRow, NodeDrain, Pool, Project, Resource
from tangram_web.pools.selectors import projects_seen_by
from tangram_web.pools.services import node_forget
from tangram_web.pools.visibility import projects_of
from tangram_web.records.models import NodeRecord

NAME_IN_PATH = r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,127}"


class ChangesWholeSystem(HasScope):
    """`HasScope`, and for changes a token that is not bound to one project."""

    def has_permission(self, request: Any, view: Any) -> bool:
        """Allow tokens that are bound to a project to read; refuse changes that concern all projects."""
        if not super().has_permission(request, view):
            return False
        if request.auth.project is None or request.method in ("GET", "HEAD", "OPTIONS"):
            return True
        self.message = "this changes every project: use a token that is not bound to a project"
        return False


class ConfigViewSet(GenericViewSet[Any]):
    """Lists and single objects of one kind."""

    permission_classes: Sequence[type[HasScope]] = (ChangesWholeSystem,)
    read_scope = Scope.READ
    write_scope = Scope.CONFIG
    lookup_field = "name"
    lookup_value_regex = NAME_IN_PATH
    view_serializer: ClassVar[type[serializers.Serializer[Any]]]

    def list(self, request: Request) -> Response:
        """Return a page of the objects that the caller may see."""
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset()))
        shown = self.view_serializer(page, many=True, context=self._seen())
        return self.get_paginated_response(shown.data)

    def retrieve(self, request: Request, **path: str) -> Response:
        """Return one object."""
        return self.shown(self.get_object())

    def body(self, serializer: type[serializers.Serializer[Any]]) -> dict[str, Any]:
        """Return the checked body of the request."""
        read = serializer(data=self.request.data)
        read.is_valid(raise_exception=True)
        checked: dict[str, Any] = read.validated_data
        return checked

    def shown(self, row: Any, status: int = status.HTTP_200_OK) -> Response:
        """Answer with ``row``."""
        return Response(self.view_serializer(row, context=self._seen()).data, status=status)

    def _seen(self) -> dict[str, Any]:
        """Return the projects that the caller may see, for the serializer."""
        return {"projects": projects_of(caller_of(self.request))}


class PoolViewSet(ConfigViewSet):
    """Pools: sets of nodes with one queue and one policy."""

    queryset = Pool.objects.all()
    serializer_class = view_serializer = PoolView

    @extend_schema(request=PoolBody, responses={201: PoolView})
    def create(self, request: Request) -> Response:
        """Add a pool."""
        pool = services.pool_create(actor=actor_of(request), **self.body(PoolBody))
        return self.shown(pool, status.HTTP_201_CREATED)

    @extend_schema(request=PoolPatch)
    def partial_update(self, request: Request, name: str) -> Response:
        """Change a pool."""
        pool = services.pool_update(actor=actor_of(request), name=name, **self.body(PoolPatch))
        return self.shown(pool)


class ProjectViewSet(ConfigViewSet):
    """Projects: owners of tasks and tokens."""

    queryset = Project.objects.all()
    serializer_class = view_serializer = ProjectView

    def get_queryset(self) -> QuerySet[Project]:
        """Select what the caller may see."""
        return projects_seen_by(caller_of(self.request))

    @extend_schema(request=ProjectBody, responses={201: ProjectView})
    def create(self, request: Request) -> Response:
        """Add a project."""
        project = services.project_create(actor=actor_of(request), **self.body(ProjectBody))
        return self.shown(project, status.HTTP_201_CREATED)

    @extend_schema(request=ProjectPatch)
    def partial_update(self, request: Request, name: str) -> Response:
        """Change a project."""
        changed = self.body(ProjectPatch)
        return self.shown(services.project_update(actor=actor_of(request), name=name, **changed))


class ResourceViewSet(ConfigViewSet):
    """Cluster-wide counted resources."""

    queryset = Resource.objects.all()
    serializer_class = view_serializer = ResourceView

    @extend_schema(request=ResourceBody, responses={201: ResourceView})
    def create(self, request: Request) -> Response:
        """Add a resource, or change its limit."""
        resource = services.resource_set(actor=actor_of(request), **self.body(ResourceBody))
        return self.shown(resource, status.HTTP_201_CREATED)

    @extend_schema(request=ResourceLimit)
    def update(self, request: Request, name: str) -> Response:
        """Set a resource's limit, adding it when it is missing."""
        body = self.body(ResourceLimit)
        return self.shown(services.resource_set(actor=actor_of(request), name=name, **body))


class FleetViewSet(ConfigViewSet):
    """Fleets: the workers behind one model name."""

    queryset = FleetRow.objects.all()
    serializer_class = view_serializer = DeclaredFleetView

    @extend_schema(request=NewFleetBody, responses={201: DeclaredFleetView})
    def create(self, request: Request) -> Response:
        """Add a fleet."""
        body = self.body(NewFleetBody)
        name = body.pop("name")
        fleet = services.fleet_set(actor=actor_of(request), name=name, spec=body, new=True)
        return self.shown(fleet, status.HTTP_201_CREATED)

    @extend_schema(request=FleetBody)
    def update(self, request: Request, name: str) -> Response:
        """Replace the declaration of a fleet, adding it when it is missing."""
        body = self.body(FleetBody)
        return self.shown(services.fleet_set(actor=actor_of(request), name=name, spec=body))

    @extend_schema(responses={204: None})
    def destroy(self, request: Request, name: str) -> Response:
        """Delete a fleet; its waiting generations end."""
        services.fleet_delete(actor=actor_of(request), name=name)
        return Response(status=status.HTTP_204_NO_CONTENT)


class NodeControl(APIView):
    """Drain, resume and forget nodes."""

    permission_classes = (ChangesWholeSystem,)
    read_scope = write_scope = Scope.OPERATE


class NodeDrainControl(NodeControl):
    """Drains."""

    @extend_schema(request=DrainBody, responses=NodeDrainView, operation_id="nodes_drain")
    def post(self, request: Request, name: str) -> Response:
        """Stop grants on a node; running actions continue, and with `finishing` its trajectories do."""
        body = DrainBody(data=request.data or {})
        body.is_valid(raise_exception=True)
        check_known(name)
        drain = services.node_drain(actor=actor_of(request), node=name, **body.validated_data)
        return _drained(name, drain)


class NodeResumeControl(NodeControl):
    """Resumes."""

    @extend_schema(request=None, responses=NodeDrainView, operation_id="nodes_resume")
    def post(self, request: Request, name: str) -> Response:
        """Allow grants on a node again."""
        check_known(name)
        services.node_resume(actor=actor_of(request), node=name)
        return _drained(name, None)


class NodeForgetControl(NodeControl):
    """Forgetting."""

    @extend_schema(request=None, responses=NodeForgottenView, operation_id="nodes_forget")
    def post(self, request: Request, name: str) -> Response:
        """Forget a node without a heartbeat and without work; 409 gives the reason of a refusal."""
        done = node_forget(actor=actor_of(request), node=name)
        return Response(NodeForgottenView({"node": name, "forgotten": done}).data)


class NodeGroups(APIView):
    """Node groups."""

    permission_classes = (ChangesWholeSystem,)
    read_scope = write_scope = Scope.READ

    @extend_schema(responses=NodeGroupsView, operation_id="node_groups_list")
    def get(self, request: Request) -> Response:
        """Return each group with its instances; 503 while Redis does not answer."""
        reports = node_group_reports(projects_of(caller_of(request)))
        found = [
            {**msgspec.structs.asdict(each), "name": name, "spec": spec_as_data(each.spec)}
            for name, each in reports.items()
        ]
        return Response(NodeGroupsView({"groups": found}).data)


def check_known(node: str) -> None:
    """Raise NotFound for a node that never joined and has no drain, such as a mistyped name."""
    if (
        NodeRecord.objects.filter(name=node).exists()
        or NodeDrain.objects.filter(node=node).exists()
    ):
        return
    known = ", ".join(NodeRecord.objects.order_by("name").values_list("name", flat=True)[:8])
    raise NotFound(
        f"there is no node {node!r}; there are: {known or 'none yet'}. A node that has not joined is"
        " drained by a configuration (kind Node, drained: true)"
    )


def _drained(node: str, drain: NodeDrain | None) -> Response:
    found = {
        "node": node,
        "drained": drain is not None,
        "finishing": drain is not None and drain.finishing,
        "reason": "" if drain is None else drain.reason,
    }
    return Response(NodeDrainView(found).data)


def caller_of(request: Request) -> Principal:
    principal: Principal = request.auth  # type: ignore[assignment]
    return principal
