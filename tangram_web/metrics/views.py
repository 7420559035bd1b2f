"""GET /metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import redis
from django.http import HttpResponse
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.views import APIView

from contract.fleet_status import FleetStatus
from domain.errors import Unavailable
from domain.principals import Principal, Scope
from tangram_web.lib import bus, scheduler_client
from tangram_web.live.access import Sight
from tangram_web.live.topic_store import stored_snapshot
from tangram_web.metrics.exposition import (
    families,
    families_of_batches,
    families_of_requests,
)
from tangram_web.metrics.problem_metrics import families_of_problems
from tangram_web.metrics.reading import READERS, read_system
from tangram_web.metrics.requests import read_request_totals
from tangram_web.metrics.store import MetricsStore
from tangram_web.problems.reading import problems_for


class MetricsView(APIView):
    """The whole system for Prometheus, in the text format or as OpenMetrics."""

    read_scope = Scope.READ
    schema = None

    def perform_content_negotiation(self, request: Request, force: bool = False) -> Any:
        """Skip the negotiation of REST renderers: the exposition chooses its format."""
        return super().perform_content_negotiation(request, force=True)

    def get(self, request: Request) -> HttpResponse:
        """Answer one scrape. Labels name all projects, so the token of one project is refused."""
        principal: Principal = request.auth  # type: ignore[assignment]
        if principal.project is not None:
            raise PermissionDenied(f"this token is of project {principal.project}; use one of none")
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_SystemCollector())
        return HttpResponse(encode(registry), content_type=content_type)


class _SystemCollector(Collector):
    """Reads all values at each scrape."""

    def collect(self) -> Iterator[Metric]:
        """Yield all families."""
        client, keys = bus.redis_client(), bus.keys()
        try:
            totals = MetricsStore(client, keys).load()
            system = read_system(client, keys, READERS)
            requests = read_request_totals(client, keys.web_requests)
            batches = cast("dict[bytes, bytes]", client.hgetall(keys.batch_totals))
            overview, nodes = (stored_snapshot(client, topic) for topic in ("overview", "nodes"))
            status = _status() if system.life_of_leader() else {}
            fleets = _fleets() if status else []
        except redis.RedisError as error:
            raise Unavailable(f"redis does not answer: {error}") from error
        resources, shares = status.get("resources", {}), status.get("shares", [])
        yield from families(totals, system, overview, nodes, resources, shares, fleets)
        yield from families_of_requests(requests)
        yield from families_of_batches(batches)
        rows = [row for row in problems_for(Sight()).rows if not row.is_over]
        yield from families_of_problems(
            (row.kind, row.severity, row.condition.affected) for row in rows
        )

    def describe(self) -> Iterator[Metric]:
        """Describe no families in advance, since that would cost a scrape."""
        return iter(())


def _status() -> dict[str, Any]:
    """Return `GET /status`; empty without an answer, so that a scrape still has all other values."""
    try:
        return scheduler_client.status()
    except Unavailable:
        return {}


def _fleets() -> list[FleetStatus]:
    """Return the fleets by name; none without an answer."""
    try:
        return scheduler_client.fleets().fleets
    except Unavailable:
        return []
