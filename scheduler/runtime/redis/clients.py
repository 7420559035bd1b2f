"""Redis clients, made in one place so that reply shapes never depend on who made them."""

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
    """Return a blocking client. Failed commands are not repeated behind our back."""
    return redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), **_OPTIONS)


def connect_async(url: str, max_connections: int = 256) -> redis.asyncio.Redis:
    """Return an asyncio client. Failed commands are not repeated behind our back."""
    return redis.asyncio.Redis.from_url(
        url, max_connections=max_connections, retry=AsyncRetry(NoBackoff(), 0), **_OPTIONS
    )


def going_on() -> bool:
    """Say whether the current task was not cancelled.

    The client can lose a cancellation that meets a reply; loops ask here before every round.
    """
    task = asyncio.current_task()
    return task is None or not task.cancelling()
