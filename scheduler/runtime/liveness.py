"""Liveness of workers: each stores a sign of life in Redis, which `/readyz` and the pages read."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import time
from typing import Final

import redis
import redis.asyncio

from domain.redis_keys import Keys
from domain.version import VERSION

#: Period of the signs of life of workers that do little else.
LIFE_SECONDS = 3.0
#: Role of a loop that must not lead (`leadership.LeadershipRefused`); its fact ``why`` gives the reason.
REFUSING = "refusing"

#: Role of web processes.
WEB: Final = "web"
#: Between two measurements of the delay of an event loop.
DELAY_SECONDS: Final = 0.5

#: What a worker reports of itself.
Fact = float | str | Sequence[float] | Sequence[str] | None


def process_name(role: str) -> str:
    """Return a name that no other process has ever had."""
    return f"{role}@{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


def show_life(client: redis.Redis, keys: Keys, name: str, role: str, **facts: Fact) -> None:
    """Store a sign of life of the worker ``name``, with its facts."""
    client.hset(keys.workers, name, life_of(role, **facts))


def life_of(role: str, **facts: Fact) -> str:
    """Return a sign of life, as it is stored."""
    own = {"role": role, "pid": os.getpid(), "at": time(), "version": VERSION}
    return json.dumps({**own, **facts})


def next_tick(period_seconds: float) -> float:
    """Return the seconds until the event loop's clock is a multiple of ``period_seconds``.

    Duties that pause so fall due together: one wake-up serves all of them.
    """
    return period_seconds - asyncio.get_running_loop().time() % period_seconds


async def keep_showing_life(
    client: redis.asyncio.Redis, keys: Keys, name: str, role: str, keep_running: Callable[[], bool]
) -> None:
    """Store signs of life of the worker ``name`` until cancelled; then delete them.

    A process that ends in order is not dead; one that is killed leaves its last sign. Facts: ``host``, ``began``, and
    ``delay_seconds``, by which its event loop ran late at most since the sign before: for so long its requests waited.
    """
    loop = asyncio.get_running_loop()
    facts: dict[str, Fact] = {"host": socket.gethostname(), "began": time()}
    delay, shown_at = 0.0, -LIFE_SECONDS
    try:
        while keep_running():
            if loop.time() - shown_at >= LIFE_SECONDS:
                life = life_of(role, **facts, delay_seconds=round(delay, 3))
                delay, shown_at = 0.0, loop.time()
                with suppress(redis.RedisError):  # other code logs an outage
                    await client.hset(keys.workers, name, life)
            before, pause = loop.time(), next_tick(DELAY_SECONDS)
            await asyncio.sleep(pause)
            delay = max(delay, loop.time() - before - pause)
    finally:
        with suppress(redis.RedisError):
            await client.hdel(keys.workers, name)
