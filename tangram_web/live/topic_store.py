"""Topics in Redis: the newest snapshot of each, and the projects whose topics are followed."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable
from time import time
from typing import Any, Final

import msgspec
import redis
from django.conf import settings

from domain.errors import Unavailable
from tangram_web.lib import bus
from tangram_web.live.topics import TopicFrame, project_of

#: A snapshot expires when it was not renewed for this long.
SNAPSHOT_TTL_SECONDS: Final = 3600
#: The same of one project, whose topics end when no page follows them.
PROJECT_SNAPSHOT_TTL_SECONDS: Final = 10
#: A consumer records what it follows this often; a record is valid for `FOLLOWED_TTL_SECONDS`.
FOLLOW_SECONDS: Final = 5.0
FOLLOWED_TTL_SECONDS: Final = 20.0


def snapshot_key(prefix: str, topic: str) -> str:
    """Return the Redis key of the newest snapshot of ``topic``."""
    return f"{prefix}:frame:{topic}"


def followed_key(prefix: str) -> str:
    """Return the Redis key of the followed projects: a sorted set, scored by wall clock."""
    return f"{prefix}:watched"


def save_snapshots(client: redis.Redis, prefix: str, frames: Iterable[TopicFrame]) -> None:
    """Store the snapshots of ``frames``. Raises redis.RedisError."""
    with client.pipeline(transaction=False) as pipeline:
        for frame in frames:
            one_project = project_of(frame.topic)
            ttl = PROJECT_SNAPSHOT_TTL_SECONDS if one_project else SNAPSHOT_TTL_SECONDS
            pipeline.set(snapshot_key(prefix, frame.topic), frame.encode_snapshot(), ex=ttl)
        pipeline.execute()


async def newest_snapshot(topic: str, seconds: float = bus.PATIENCE_SECONDS) -> bytes | None:
    """Return the newest snapshot of ``topic``, or None before the first one.

    Raises Unavailable when Redis does not answer within ``seconds``.
    """
    key = snapshot_key(settings.TANGRAM_KEY_PREFIX, topic)
    snapshot = await bus.query_once(lambda client: client.get(key), seconds)
    return snapshot if isinstance(snapshot, bytes) else None


def stored_snapshot(client: redis.Redis, topic: str) -> dict[str, Any]:
    """Return the newest snapshot of ``topic``, decoded; empty before the first one.

    Raises redis.RedisError when Redis does not answer.
    """
    (found,) = stored_snapshots(client, topic)
    return found


def stored_snapshots(client: redis.Redis, *topics: str) -> list[dict[str, Any]]:
    """Return what `stored_snapshot` does, of several topics by one command."""
    names = [snapshot_key(settings.TANGRAM_KEY_PREFIX, topic) for topic in topics]
    found: Any = client.mget(names)
    return [msgspec.msgpack.decode(each) if isinstance(each, bytes) else {} for each in found]


async def record_followed(projects: Collection[str], seconds: float = bus.PATIENCE_SECONDS) -> None:
    """Record that pages follow these projects now; skipped if Redis needs more than ``seconds``."""
    key, now = followed_key(settings.TANGRAM_KEY_PREFIX), dict.fromkeys(projects, time())
    with contextlib.suppress(Unavailable):
        await bus.query_once(lambda client: client.zadd(key, now), seconds)


def followed_projects(client: redis.Redis, prefix: str, now: float) -> list[str]:
    """Return the projects with a valid record, the newest first; ``now`` is wall clock.

    Expired records are deleted. Raises redis.RedisError.
    """
    key = followed_key(prefix)
    with client.pipeline(transaction=False) as pipeline:
        pipeline.zremrangebyscore(key, "-inf", f"({now - FOLLOWED_TTL_SECONDS}")
        pipeline.zrevrange(key, 0, -1)
        _, found = pipeline.execute()
    return [project.decode() for project in found]
