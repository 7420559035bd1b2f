"""GET /metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import redis
from django.http import HttpResponse
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.views import APIView

from domain.errors import Unavailable
from domain.principals import Principal, Scope
from tangram_web.lib import ask, bus
from tangram_web.live.topic_store import stored_snapshot
from tangram_web.metrics.exposition import families, families_of_requests
from tangram_web.metrics.requests import read_answered
from tangram_web.metrics.standing import read_standing
from tangram_web.metrics.store import CONSUMER, MetricsStore

#: Readers of the journal that there are in every Tangram.
READERS = ("projector", CONSUMER)


class MetricsView(APIView):
    """The whole system for Prometheus, in the text format or as OpenMetrics."""

    read_scope = Scope.READ
    schema = None

    def perform_content_negotiation(self, request: Request, force: bool = False) -> Any:
        """Let the exposition choose: its formats are no renderers of REST."""
        return super().perform_content_negotiation(request, force=True)

    def get(self, request: Request) -> HttpResponse:
        """Answer one scrape. Labels name every project, so a project's token is not enough."""
        principal: Principal = request.auth  # type: ignore[assignment]
        if principal.project is not None:
            raise PermissionDenied(f"this token is of project {principal.project}; use one of none")
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Reading())
        return HttpResponse(encode(registry), content_type=content_type)


class _Reading(Collector):
    """Reads everything at the moment it is asked."""

    def collect(self) -> Iterator[Metric]:
        """Yield all families."""
        client, keys = bus.redis_client(), bus.keys()
        try:
            totals = MetricsStore(client, keys).load()
            standing = read_standing(client, keys, READERS)
            answered = read_answered(client, keys.web_requests)
            overview, nodes = (stored_snapshot(client, topic) for topic in ("overview", "nodes"))
            books = _books() if standing.life_of_leader() else {}
        except redis.RedisError as error:
            raise Unavailable(f"redis does not answer: {error}") from error
        resources, shares = books.get("resources", {}), books.get("shares", [])
        yield from families(totals, standing, overview, nodes, resources, shares)
        yield from families_of_requests(answered)

    def describe(self) -> Iterator[Metric]:
        """Tell nothing beforehand: a reading costs what a scrape costs."""
        return iter(())


def _books() -> dict[str, Any]:
    """Return how the leader's books stand; without an answer a scrape has everything else."""
    try:
        return ask.status()
    except Unavailable:
        return {}
