"""``GET /api/v1/checks``: the findings of all checks of this installation; ``GET /api/v1/cluster/checks``: of its cluster."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from domain.principals import Scope
from tangram_web.doctor.checks import CHECKS
from tangram_web.doctor.cluster_finding import FindingSeverity
from tangram_web.doctor.cluster_reading import findings_of, read_cluster
from tangram_web.doctor.results import CheckState, in_order, run
from tangram_web.lib.access import HasScope


class CheckResultView(serializers.Serializer[Any]):
    """One finding."""

    check = serializers.CharField()
    state = serializers.ChoiceField(choices=[health.value for health in CheckState])
    detail = serializers.CharField()
    cure = serializers.CharField(help_text="What to do; empty where it is in order.")


class ChecksView(serializers.Serializer[Any]):
    """All findings, and whether none of them is a failure."""

    in_order = serializers.BooleanField()
    findings = CheckResultView(many=True)


class ClusterFindingView(serializers.Serializer[Any]):
    """One finding about the cluster."""

    severity = serializers.ChoiceField(choices=[each.value for each in FindingSeverity])
    kind = serializers.CharField(
        help_text="That of a problem, where /api/v1/problems has the same."
    )
    subject = serializers.CharField(help_text="Node, part, group or host.")
    sentence = serializers.CharField()
    cure = serializers.CharField()


class ExaminedView(serializers.Serializer[Any]):
    """How much was examined."""

    nodes = serializers.IntegerField()
    doors = serializers.IntegerField(help_text="Tried from this web process.")
    parts = serializers.IntegerField()
    groups = serializers.IntegerField()


class ClusterChecksView(serializers.Serializer[Any]):
    """All findings about the cluster, worst first, and whether none of them is a fault."""

    in_order = serializers.BooleanField()
    examined = ExaminedView()
    findings = ClusterFindingView(many=True)


class OfTheWholeSystem(HasScope):
    """`HasScope`, for a token that is not bound to one project: findings name nodes and folders."""

    def has_permission(self, request: Any, view: Any) -> bool:
        """Refuse tokens that are bound to a project."""
        if not super().has_permission(request, view):
            return False
        self.message = "this concerns every project: use a token that is not bound to a project"
        return request.auth.project is None


class Checks(APIView):
    """The checks of this installation."""

    permission_classes = (OfTheWholeSystem,)
    read_scope = Scope.READ

    @extend_schema(responses=ChecksView, operation_id="checks")
    def get(self, request: Request) -> Response:
        """Run all checks: database, Redis, disk, pools, and the protection of each node."""
        findings = run(CHECKS)
        shown = [asdict(finding) for finding in findings]
        return Response({"in_order": in_order(findings), "findings": shown})


class ClusterChecks(APIView):
    """The checks of the cluster."""

    permission_classes = (OfTheWholeSystem,)
    read_scope = Scope.READ

    @extend_schema(responses=ClusterChecksView, operation_id="cluster_checks")
    def get(self, request: Request) -> Response:
        """Compare clocks and versions, try the doors of nodes, and judge what nodes and keeper report; 503 without Redis."""
        facts = read_cluster()
        findings = findings_of(facts)
        examined = {
            "nodes": len(facts.nodes),
            "doors": sum(node.door_problem is not None for node in facts.nodes),
            "parts": len(facts.parts) + (facts.leader is not None),
            "groups": len(facts.groups),
        }
        return Response(
            {
                "in_order": all(each.severity != FindingSeverity.FAULT for each in findings),
                "examined": examined,
                "findings": [asdict(each) for each in findings],
            }
        )
