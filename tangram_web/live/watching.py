"""Which projects somebody watches: what consumers say, and what the fold asks."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from time import time
from typing import Any

import redis
from django.conf import settings

from domain.errors import Unavailable
from tangram_web.lib import bus
from tangram_web.live.topics import WATCH_LASTS_SECONDS, watch_key


async def say_watched(projects: Collection[str], seconds: float = bus.PATIENCE_SECONDS) -> None:
    """Say that these projects are watched now, within ``seconds``.

    Where Redis does not answer, nothing is said: it is said again later.
    """
    key, said = watch_key(settings.TANGRAM_KEY_PREFIX), dict.fromkeys(projects, time())
    with contextlib.suppress(Unavailable):
        await bus.ask_once(lambda client: client.zadd(key, said), seconds)


def watched(client: redis.Redis, prefix: str, now: float) -> list[str]:
    """Return the projects that were watched lately, and forget the others; ``now`` is wall clock.

    Those watched last come first. Raises redis.RedisError.
    """
    key = watch_key(prefix)
    client.zremrangebyscore(key, "-inf", f"({now - WATCH_LASTS_SECONDS}")
    found: Any = client.zrevrange(key, 0, -1)
    return [project.decode() for project in found]
