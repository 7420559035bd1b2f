"""``GET /api/v1/tasks/{task}/report``: the report of a task as data, for notebooks and the command line."""

from __future__ import annotations

from typing import Any

import msgspec
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from domain import errors
from domain.principals import Scope
from tangram_web.lib.access import HasScope
from tangram_web.live.access import Sight
from tangram_web.reports.task_report import report_of

_PARAMETERS = [
    OpenApiParameter("project", str, description="Project of both tasks, for tokens of no project. Default: `default`."),
    OpenApiParameter("with", str, description="Another task of the project: differences with their intervals."),
]  # fmt: skip


class TaskReportApi(APIView):
    """The report of one task."""

    permission_classes = (HasScope,)
    read_scope = Scope.READ

    @extend_schema(
        operation_id="tasks_report", parameters=_PARAMETERS, responses={200: OpenApiTypes.OBJECT}
    )
    def get(self, request: Request, task: str) -> Response:
        """Report times by phase and family, units granted, outcomes, steps and costs of a task."""
        own = request.auth.project  # type: ignore[union-attr]
        project = own or request.query_params.get("project", "default")
        other = request.query_params.get("with", "")
        if "\0" in f"{project}{other}":
            raise ValidationError({"project": ["not a name"]})
        sight = Sight(None if own is None else (own,))
        try:
            found = report_of(sight, f"{project}/{task}", f"{project}/{other}" if other else "")
        except errors.NotFound as error:
            raise NotFound(str(error)) from error
        shown: dict[str, Any] = msgspec.to_builtins(found)
        return Response(shown)
