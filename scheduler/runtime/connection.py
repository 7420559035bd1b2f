"""Redis clients, made in one place so that reply shapes never depend on who made them."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

#: Longest time a blocking read may last; socket time-outs leave room for it.
MAX_BLOCK_SECONDS = 5.0
_OPTIONS: dict[str, Any] = {
    # RESP2: the reply shapes of XREAD and friends are the same on servers 6.2 to 8.
    "protocol": 2,
    "socket_timeout": MAX_BLOCK_SECONDS + 10.0,
    "socket_connect_timeout": 5.0,
    "health_check_interval": 0,
}


def connect(url: str) -> redis.Redis:
    """Return a blocking client. Failed commands are not repeated behind our back."""
    return redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), **_OPTIONS)


def connect_async(url: str, max_connections: int = 256) -> redis.asyncio.Redis:
    """Return an asyncio client. Failed commands are not repeated behind our back."""
    return redis.asyncio.Redis.from_url(
        url, max_connections=max_connections, retry=AsyncRetry(NoBackoff(), 0), **_OPTIONS
    )


#: Entries of one stream: (id, fields).
Entries = list[tuple[str, dict[bytes, bytes]]]


def going_on() -> bool:
    """Say whether the current task was not cancelled.

    The client can lose a cancellation that meets a reply; loops ask here before every round.
    """
    task = asyncio.current_task()
    return task is None or not task.cancelling()


def read_stream(
    client: redis.Redis, stream: str, after: str, count: int, block_seconds: float | None
) -> Entries:
    """Return up to ``count`` entries behind ``after``, waiting for the first one if asked to."""
    answer = client.xread({stream: after}, count=count, block=_milliseconds(block_seconds))
    return _entries(answer)


async def read_stream_async(
    client: redis.asyncio.Redis, stream: str, after: str, count: int, block_seconds: float | None
) -> Entries:
    """Do what `read_stream` does, without blocking the event loop."""
    answer = await client.xread({stream: after}, count=count, block=_milliseconds(block_seconds))
    return _entries(answer)


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else max(1, int(min(seconds, MAX_BLOCK_SECONDS) * 1000))


def _entries(answer: Any) -> Entries:
    if not answer:
        return []
    found = cast("list[tuple[bytes, dict[bytes, bytes]]]", answer[0][1])
    return [(key.decode(), fields) for key, fields in found]
