"""Redis clients, created in one place so that their options and reply shapes are the same everywhere."""

from __future__ import annotations

import asyncio
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from scheduler.runtime.redis.connection import PATIENCE_SECONDS

_OPTIONS: dict[str, Any] = {
    # RESP2: the reply shapes of XREAD and friends are the same on servers 6.2 to 8.
    "protocol": 2,
    "socket_timeout": PATIENCE_SECONDS,
    "socket_connect_timeout": 5.0,
    "health_check_interval": 0,
}


def connect(url: str) -> redis.Redis:
    """Return a blocking client, which does not retry failed commands."""
    return redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), **_OPTIONS)


def connect_async(url: str, max_connections: int = 256) -> redis.asyncio.Redis:
    """Return an asyncio client, which does not retry failed commands."""
    return redis.asyncio.Redis.from_url(
        url, max_connections=max_connections, retry=AsyncRetry(NoBackoff(), 0), **_OPTIONS
    )


def keep_running() -> bool:
    """Whether the current task is not cancelled.

    The client can lose a cancellation that coincides with a reply; loops check before every round.
    """
    task = asyncio.current_task()
    return task is None or not task.cancelling()
