"""What the web processes answer, by route and status.

Each process counts by itself and adds what is new to one hash in Redis every second, so the sums go
on over restarts and it does not matter which process is scraped. What a killed process counted in
its last second is lost. While Redis is away the counts wait here; if it went away in the middle of
its answer, one second may count twice.

Routes are templates (``/api/v1/actions/{id}``), never paths: their number is bounded, and no id
becomes a label. What waits for an action (``?wait=``) is a route of its own, for its time is not
ours; a stream counts from its request to its end.
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

from contract.requests import ROUTE

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

log = logging.getLogger(__name__)

#: Upper bounds of the seconds a request takes: 1 ms … 30 s.
BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
#: Requests of no route of ours: unknown paths, files that browsers ask for.
OTHER: Final = "other"
#: The client had gone before there was a status, as proxies call it.
CLIENT_GONE: Final = 499
FLUSH_SECONDS: Final = 1.0
#: Between the parts of a field's name in Redis; no route contains it.
_CUT: Final = "\x1f"


class Answered(msgspec.Struct):
    """Sums over all web processes, as the metrics show them."""

    #: (method, route, status)
    requests: dict[tuple[str, str, str], int] = {}
    #: (route,) → by bucket, not cumulated; the last has no upper bound.
    counts: dict[tuple[str], list[int]] = {}
    seconds: dict[tuple[str], float] = {}


class RequestCounts:
    """What one process has counted and not yet stored."""

    def __init__(self) -> None:
        self._requests: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}

    def add(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one answer."""
        known = method if method in METHODS else "OTHER"
        self._requests[_CUT.join(("n", known, route, str(status)))] += 1
        self._requests[_CUT.join(("b", route, str(bisect_left(BOUNDS, seconds))))] += 1
        summed = f"s{_CUT}{route}"
        self._seconds[summed] = self._seconds.get(summed, 0.0) + seconds

    def take(self) -> tuple[Mapping[str, int], Mapping[str, float]]:
        """Return everything and begin anew."""
        taken = self._requests, self._seconds
        self._requests, self._seconds = Counter(), {}
        return taken

    def give_back(self, requests: Mapping[str, int], seconds: Mapping[str, float]) -> None:
        """Keep what could not be stored."""
        self._requests.update(requests)
        for field, value in seconds.items():
            self._seconds[field] = self._seconds.get(field, 0.0) + value


class CountedRequests:
    """An ASGI application that counts what another one answers."""

    def __init__(self, inner: Application, counts: RequestCounts) -> None:
        self._inner = inner
        self._counts = counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        began, status = perf_counter(), CLIENT_GONE

        async def watched(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._inner(scope, receive, watched)
        finally:
            route = scope.get(ROUTE, OTHER)
            if b"wait=" in scope.get("query_string", b""):
                route += "?wait"
            self._counts.add(scope["method"], route, status, perf_counter() - began)


async def store_counts(client: redis.asyncio.Redis, key: str, counts: RequestCounts) -> None:
    """Add what is new to the sums in Redis, or keep it for the next time."""
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
        if not isinstance(error, redis.ConnectionError):  # others tell of an outage
            log.warning("request counts wait: %s", error)


async def keep_storing(
    client: redis.asyncio.Redis, key: str, counts: RequestCounts, keep_running: Callable[[], bool]
) -> None:
    """Store every second while ``keep_running``, until cancelled; then once more."""
    try:
        while keep_running():
            await asyncio.sleep(FLUSH_SECONDS)
            await store_counts(client, key, counts)
    finally:
        with suppress(redis.RedisError):
            await store_counts(client, key, counts)


def read_answered(client: redis.Redis, key: str) -> Answered:
    """Return the sums of all processes."""
    answered = Answered()
    stored: Mapping[bytes, bytes] = client.hgetall(key)  # type: ignore[assignment]
    for name, value in stored.items():
        what, *parts = name.decode().split(_CUT)
        if what == "n":
            method, route, status = parts
            answered.requests[method, route, status] = int(value)
        elif what == "s":
            answered.seconds[parts[0],] = float(value)
        elif what == "b":
            buckets = answered.counts.setdefault((parts[0],), [0] * (len(BOUNDS) + 1))
            buckets[int(parts[1])] = int(value)
    return answered
