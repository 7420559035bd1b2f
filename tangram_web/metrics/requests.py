"""Counts and durations of HTTP requests, by route and status.

Each process adds its new counts to one hash in Redis every second, so the sums continue over
restarts and any process can be scraped. A killed process loses the counts of its last second. While
Redis is down the counts stay in memory; if it fails in the middle of its answer, one second may
count twice.

Routes are templates (``/api/v1/actions/{id}``), never paths: their number is bounded, and no id
becomes a label. A request that waits for an action (``?wait=``) has a route of its own, since its
duration is that of the action; a stream counts from its request to its end.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from time import perf_counter
from typing import Any, Final

import msgspec
import redis
import redis.asyncio

from contract.requests import EXCHANGE, ROUTE

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

log = logging.getLogger(__name__)

#: Upper bounds of the seconds a request takes: 1 ms … 30 s.
BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
#: Requests without a route: unknown paths, files that browsers request.
OTHER: Final = "other"
#: The client disconnected before there was a status; nginx uses the same number.
CLIENT_GONE: Final = 499
FLUSH_SECONDS: Final = 1.0
#: Between the parts of a field's name in Redis; no route contains it.
_CUT: Final = "\x1f"


class RequestTotals(msgspec.Struct):
    """Sums over all web processes."""

    #: (method, route, status)
    requests: dict[tuple[str, str, str], int] = {}
    #: (route,) → by bucket, not cumulated; the last has no upper bound.
    counts: dict[tuple[str], list[int]] = {}
    seconds: dict[tuple[str], float] = {}


class RequestCounts:
    """Counts of one process that are not stored yet."""

    def __init__(self) -> None:
        #: (method, route, status, number of the bucket) → responses, and the seconds that they took.
        self._added: dict[tuple[str, str, int, int], tuple[int, float]] = {}
        self._requests: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}

    def add(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one response."""
        response = method, route, status, bisect_left(BOUNDS, seconds)
        count, before = self._added.get(response, (0, 0.0))
        self._added[response] = count + 1, before + seconds

    def take(self) -> tuple[Mapping[str, int], Mapping[str, float]]:
        """Return all counts and reset them."""
        added, self._added = self._added, {}
        for (method, route, status, bucket), (count, seconds) in added.items():
            known = method if method in METHODS else "OTHER"
            self._requests[_CUT.join(("n", known, route, str(status)))] += count
            self._requests[_CUT.join(("b", route, str(bucket)))] += count
            summed = f"s{_CUT}{route}"
            self._seconds[summed] = self._seconds.get(summed, 0.0) + seconds
        taken = self._requests, self._seconds
        self._requests, self._seconds = Counter(), {}
        return taken

    def give_back(self, requests: Mapping[str, int], seconds: Mapping[str, float]) -> None:
        """Add counts that could not be stored."""
        self._requests.update(requests)
        for field, value in seconds.items():
            self._seconds[field] = self._seconds.get(field, 0.0) + value


class CountedRequests:
    """ASGI middleware that counts the responses of an application."""

    def __init__(self, inner: Application, counts: RequestCounts) -> None:
        self._inner = inner
        self._counts = counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        began, status = perf_counter(), CLIENT_GONE
        exchange = scope.get(EXCHANGE)
        if exchange is not None:  # it knows its status
            try:
                await self._inner(scope, receive, send)
            finally:
                self._count(scope, exchange.status or CLIENT_GONE, perf_counter() - began)
            return

        async def watched(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._inner(scope, receive, watched)
        finally:
            self._count(scope, status, perf_counter() - began)

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        route = scope.get(ROUTE, OTHER)
        if b"wait=" in scope.get("query_string", b""):
            route += "?wait"
        self._counts.add(scope["method"], route, status, seconds)


async def store_counts(client: redis.asyncio.Redis, key: str, counts: RequestCounts) -> None:
    """Add the counts to the sums in Redis, or keep them for the next time."""
    requests, seconds = counts.take()
    if not requests:
        return
    pipeline = client.pipeline(transaction=True)
    for field, count in requests.items():
        pipeline.hincrby(key, field, count)
    for field, value in seconds.items():
        pipeline.hincrbyfloat(key, field, value)
    try:
        await pipeline.execute()
    except redis.RedisError as error:
        counts.give_back(requests, seconds)
        if not isinstance(error, redis.ConnectionError):  # other code logs an outage
            log.warning("request counts are not stored yet: %s", error)


async def keep_storing(
    client: redis.asyncio.Redis,
    key: str,
    counts: RequestCounts,
    keep_running: Callable[[], bool],
    pause: Callable[[], float] = lambda: FLUSH_SECONDS,
) -> None:
    """Store every second while ``keep_running``, until cancelled; then once more. ``pause``: the seconds until then."""
    try:
        while keep_running():
            await asyncio.sleep(pause())
            await store_counts(client, key, counts)
    finally:
        with suppress(redis.RedisError):
            await store_counts(client, key, counts)


def read_request_totals(client: redis.Redis, key: str) -> RequestTotals:
    """Return the sums of all processes."""
    totals = RequestTotals()
    stored: Mapping[bytes, bytes] = client.hgetall(key)  # type: ignore[assignment]
    for name, value in stored.items():
        what, *parts = name.decode().split(_CUT)
        if what == "n":
            method, route, status = parts
            totals.requests[method, route, status] = int(value)
        elif what == "s":
            totals.seconds[parts[0],] = float(value)
        elif what == "b":
            buckets = totals.counts.setdefault((parts[0],), [0] * (len(BOUNDS) + 1))
            buckets[int(parts[1])] = int(value)
    return totals
