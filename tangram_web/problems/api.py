"""``GET /api/v1/problems``: the health of the system and its problems, as the Overview shows them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from domain.principals import Principal, Scope
from tangram_web.live.access import Sight
from tangram_web.problems.health import HealthState
from tangram_web.problems.judge import ProblemState
from tangram_web.problems.kinds import KINDS, Severity
from tangram_web.problems.reading import ProblemRow, ProblemsView, problems_for

_LISTED = [state.value for state in ProblemState if state is not ProblemState.PENDING]


class ProblemSerializer(serializers.Serializer[Any]):
    """One problem, worst first."""

    id = serializers.CharField(help_text="Kind and subject; a new incident has the same id.")
    kind = serializers.ChoiceField(choices=[kind.key for kind in KINDS])
    subject = serializers.CharField()
    severity = serializers.ChoiceField(choices=[each.value for each in Severity])
    state = serializers.ChoiceField(choices=_LISTED)
    title = serializers.CharField()
    detail = serializers.CharField()
    project = serializers.CharField(help_text="Empty: it concerns what all projects share.")
    since = serializers.DateTimeField()
    cleared_at = serializers.DateTimeField(allow_null=True)
    actions = serializers.IntegerField(help_text="Actions that it holds up, or that fail.")
    owner = serializers.CharField(
        help_text="Submitter of the project's work where one is known, else the project, else platform."
    )
    verb = serializers.CharField(help_text="Address of the page of the verb that helps.")
    evidence = serializers.CharField(help_text="Address of the page that shows the evidence.")
    help = serializers.CharField(help_text="Section of the documentation.")
    acknowledged_by = serializers.CharField()
    note = serializers.CharField()


class ProblemsSerializer(serializers.Serializer[Any]):
    """The health of the system, and its problems."""

    health = serializers.ChoiceField(choices=[state.value for state in HealthState])
    headline = serializers.CharField()
    detail = serializers.CharField()
    at = serializers.DateTimeField(allow_null=True, help_text="Null before the first judgement.")
    problems = ProblemSerializer(many=True)


class Problems(APIView):
    """The problems that a token may see."""

    read_scope = Scope.READ

    @extend_schema(responses=ProblemsSerializer, operation_id="problems")
    def get(self, request: Request) -> Response:
        """Return the health of the system, and its problems: worst first, cleared ones for ten minutes."""
        principal: Principal = request.auth  # type: ignore[assignment]
        sight = Sight() if principal.project is None else Sight((principal.project,))
        return Response(body_of(problems_for(sight, principal.project or "")))


def body_of(view: ProblemsView) -> dict[str, Any]:
    """Return the body of the answer."""
    return {
        "health": view.health.state.value,
        "headline": view.health.headline,
        "detail": view.detail,
        "at": _text(view.at) if view.at else None,
        "problems": [_problem(row) for row in view.rows],
    }


def _problem(row: ProblemRow) -> dict[str, Any]:
    condition = row.condition
    return {
        "id": row.id,
        "kind": row.kind,
        "subject": condition.subject,
        "severity": row.severity,
        "state": row.state,
        "title": condition.title,
        "detail": condition.detail,
        "project": condition.project,
        "since": _text(row.since),
        "cleared_at": None if row.cleared_at is None else _text(row.cleared_at),
        "actions": condition.affected,
        "owner": condition.owner,
        "verb": condition.verb_link,
        "evidence": condition.evidence_link,
        "help": row.help,
        "acknowledged_by": row.acknowledged_by,
        "note": row.note,
    }


def _text(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).isoformat().replace("+00:00", "Z")
