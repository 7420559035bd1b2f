"""``GET /api/v1/gpus``: utilisation and memory of each GPU, as the GPU page shows them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import redis
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from domain.errors import Unavailable
from domain.principals import Scope
from tangram_web.dashboard.resource_selectors import uses_now
from tangram_web.live.gpu_use import GpuState, GpuUse

_FILTERS: Final = ("node", "pool")


class GpuSerializer(serializers.Serializer[Any]):
    """One GPU."""

    id = serializers.CharField(help_text="Node and number, as in `n1/0`.")
    node = serializers.CharField()
    pool = serializers.CharField()
    gpu = serializers.IntegerField(help_text="Its number in NVML's order.")
    chunk = serializers.CharField(
        help_text="GPUs of the chunk that actions hold it in, as in `0-3`; empty: no action holds it."
    )
    state = serializers.ChoiceField(
        choices=[state.value for state in GpuState],
        help_text="`simulated`: declared, without a card; `unmeasured`: NVML or the node does not answer.",
    )
    busy_ratio = serializers.FloatField(
        allow_null=True,
        help_text="Share of the last sampling period in which it was busy, 0 to 1; null: unknown, or no card.",
    )
    used_bytes = serializers.IntegerField(allow_null=True, help_text="Memory in use.")
    total_bytes = serializers.IntegerField(allow_null=True, help_text="Memory of the card.")
    measured_at = serializers.DateTimeField(allow_null=True)


class GpusSerializer(serializers.Serializer[Any]):
    """All GPUs, on one page."""

    results = GpuSerializer(many=True)
    next = serializers.CharField(allow_null=True, help_text="Always null.")
    previous = serializers.CharField(allow_null=True, help_text="Always null.")


class Gpus(APIView):
    """The GPUs of all nodes: nodes belong to no project."""

    read_scope = Scope.READ

    @extend_schema(
        responses=GpusSerializer,
        operation_id="gpus",
        parameters=[
            OpenApiParameter(name, str, description=f"Of this {name}.") for name in _FILTERS
        ],
    )
    def get(self, request: Request) -> Response:
        """Return utilisation and memory of each GPU, by NVML; a declared GPU has no card and no figures."""
        asked = {name: request.query_params[name] for name in _FILTERS if name in request.query_params}  # fmt: skip
        try:
            found = uses_now()
        except redis.RedisError as error:
            raise Unavailable(f"redis does not answer: {error}") from error
        rows = [
            _row(use)
            for use in found
            if all(getattr(use, name) == value for name, value in asked.items())
        ]
        return Response({"results": rows, "next": None, "previous": None})


def _row(use: GpuUse) -> dict[str, Any]:
    at = use.measured_at
    return {
        "id": f"{use.node}/{use.gpu}",
        **msgspec.structs.asdict(use),
        "measured_at": None if at is None else datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z"),
    }  # fmt: skip
