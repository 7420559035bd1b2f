"""``GET /api/v1/compare?a=…&b=…``: the comparison of the page, as data."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from domain.errors import InvalidRequest
from domain.principals import Scope
from tangram_web.compare.comparison import Comparison, compare, verdict
from tangram_web.compare.sides import KINDS, SideRows, UnknownSide, rows_of
from tangram_web.compare.statistics import DifferenceFinding
from tangram_web.lib.access import HasScope
from tangram_web.live.access import Sight

_SIDE = (
    "`task:PROJECT/NAME`, `range:FROM..TO` (ISO 8601, or seconds since 1970), `revision:NUMBER`, `simulation:ID/RUN` or "
    "`measured:ID`."
)


class SideView(serializers.Serializer[Any]):
    """One side."""

    name = serializers.CharField()
    says = serializers.CharField(help_text="What its actions are.")
    simulated = serializers.BooleanField()
    actions = serializers.IntegerField(help_text="Actions that are compared.")
    cut = serializers.BooleanField(help_text="There are more actions than are compared.")
    outcomes = serializers.DictField(child=serializers.IntegerField())


class MeasureView(serializers.Serializer[Any]):
    """One measure; seconds, shares, actions per minute, or core-hours of 1,000 actions."""

    name = serializers.CharField()
    unit = serializers.CharField()
    a = serializers.FloatField()
    b = serializers.FloatField()
    difference = serializers.FloatField(help_text="`b` less `a`.")
    low = serializers.FloatField(allow_null=True, help_text="Begin of the 95 % interval.")
    high = serializers.FloatField(allow_null=True)
    relative = serializers.FloatField(allow_null=True, help_text="`difference` over `a`.")
    finding = serializers.ChoiceField(
        choices=[each.value for each in DifferenceFinding],
        help_text="Whether `b` is better; `no clear difference` where the interval contains 0.",
    )


class ComparisonView(serializers.Serializer[Any]):
    """Two sides, and each measure that both have."""

    verdict = serializers.CharField()
    paired = serializers.BooleanField(help_text="The same actions, compared one by one.")
    a = SideView()
    b = SideView()
    measures = MeasureView(many=True)


class CompareView(APIView):
    """The comparison of two tasks, time ranges, revisions or simulated runs."""

    permission_classes = (HasScope,)
    read_scope = Scope.READ

    @extend_schema(
        responses=ComparisonView,
        operation_id="compare",
        parameters=[
            OpenApiParameter(name, str, required=True, description=_SIDE) for name in ("a", "b")
        ],
    )
    def get(self, request: Request) -> Response:
        """Compare two sides: mean, quantiles and phases of ACT, throughput, exit codes and costs."""
        project = request.auth.project  # type: ignore[union-attr]
        sight = Sight(None if project is None else (project,))
        sides = [self._side(request, name, sight) for name in ("a", "b")]
        return Response(as_data(compare(*sides)))

    def _side(self, request: Request, name: str, sight: Sight) -> SideRows:
        try:
            return rows_of(request.query_params.get(name, ""), sight)
        except UnknownSide as error:
            raise NotFound(f"{name}: {error}") from error
        except InvalidRequest as error:
            raise ValidationError({name: [f"{error}; kinds are {', '.join(KINDS)}"]}) from error


def as_data(found: Comparison) -> dict[str, Any]:
    """Return a comparison as the API shows it."""
    return {
        "verdict": verdict(found),
        "paired": found.paired,
        "a": _side(found.a),
        "b": _side(found.b),
        "measures": [
            {
                "name": each.name,
                "unit": each.unit.name,
                **{
                    name: None if value is None else value * each.unit.scale
                    for name, value in (
                        ("a", each.difference.a),
                        ("b", each.difference.b),
                        ("difference", each.difference.difference),
                        ("low", each.difference.low),
                        ("high", each.difference.high),
                    )
                },
                "relative": each.difference.relative,
                "finding": str(each.finding),
            }
            for each in found.measures
        ],
    }


def _side(side: SideRows) -> dict[str, Any]:
    return {
        "name": side.name, "says": side.says, "simulated": side.simulated, "actions": len(side),
        "cut": side.cut, "outcomes": dict(side.outcomes),
    }  # fmt: skip
