"""Request metrics: /metrics of any web process has the totals of all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.asyncio
from rest_framework.test import APIClient

from domain.principals import Scope
from domain.redis_keys import Keys
from tangram_web.metrics.requests import RequestCounts, store_counts
from tests.integration.web.test_metrics import samples

KEY = Keys().web_requests


async def stored(counts: RequestCounts, url: str) -> None:
    client = redis.asyncio.Redis.from_url(url)
    try:
        await store_counts(client, KEY, counts)
    finally:
        await client.aclose()


@pytest.mark.parametrize("processes", [1, 3])
async def test_processes_add_to_the_same_sums(
    redis_bus: Any, settings: Any, processes: int
) -> None:
    for _ in range(processes):
        counts = RequestCounts()
        counts.add("GET", "/livez", 200, 0.002)
        counts.add("GET", "/livez", 503, 60.0)
        await stored(counts, settings.TANGRAM_REDIS_URL)
    fields = redis_bus.hgetall(KEY)
    assert fields[b"n\x1fGET\x1f/livez\x1f200"] == b"%d" % processes


def test_they_are_counters_and_cumulated_histograms(
    redis_bus: Any, token: Callable[..., str]
) -> None:
    cut = "\x1f"
    redis_bus.hset(KEY, cut.join(("n", "POST", "/api/v1/actions", "202")), 3)
    redis_bus.hset(KEY, cut.join(("b", "/api/v1/actions", "0")), 2)
    redis_bus.hset(KEY, cut.join(("b", "/api/v1/actions", "14")), 1)
    redis_bus.hset(KEY, cut.join(("s", "/api/v1/actions")), 31.5)
    raw = token(Scope.READ, name="prometheus")

    answer = APIClient().get("/metrics", headers={"Authorization": f"Bearer {raw}"})

    found = samples(answer.content)
    route = ("route", "/api/v1/actions")
    labels = (("method", "POST"), route, ("status", "202"))
    assert found["tangram_http_requests_total", labels] == 3
    bucket = "tangram_http_request_seconds_bucket"
    assert found[bucket, (("le", "0.001"), route)] == 2
    assert found[bucket, (("le", "30.0"), route)] == 2
    assert found[bucket, (("le", "+Inf"), route)] == 3
    assert found["tangram_http_request_seconds_sum", (route,)] == 31.5


async def test_counts_wait_while_redis_is_away(redis_bus: Any, settings: Any) -> None:
    counts = RequestCounts()
    counts.add("GET", "/livez", 200, 0.002)
    await stored(counts, "unix:///nowhere/redis.sock")
    assert redis_bus.hgetall(KEY) == {}
    await stored(counts, settings.TANGRAM_REDIS_URL)
    assert redis_bus.hget(KEY, "n\x1fGET\x1f/livez\x1f200") == b"1"


async def test_counts_wait_while_redis_takes_none(redis_bus: Any, settings: Any) -> None:
    """1. Redis has no memory left. 2. There is room again."""
    counts = RequestCounts()
    counts.add("GET", "/livez", 200, 0.002)
    redis_bus.config_set("maxmemory", 1)
    try:
        await stored(counts, settings.TANGRAM_REDIS_URL)
    finally:
        redis_bus.config_set("maxmemory", 0)
    assert redis_bus.hgetall(KEY) == {}
    await stored(counts, settings.TANGRAM_REDIS_URL)
    assert redis_bus.hget(KEY, "n\x1fGET\x1f/livez\x1f200") == b"1"
