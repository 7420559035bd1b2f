"""The newest snapshot of a topic, for pages that come anew."""

from __future__ import annotations

from typing import Any

import msgspec
import redis
from django.conf import settings

from tangram_web.lib import bus
from tangram_web.live.topics import snapshot_key


async def newest_snapshot(topic: str, seconds: float = bus.PATIENCE_SECONDS) -> bytes | None:
    """Return the newest snapshot of ``topic``, or None before the first one.

    Raises Unavailable when Redis does not answer within ``seconds``.
    """
    key = snapshot_key(settings.TANGRAM_KEY_PREFIX, topic)
    snapshot = await bus.ask_once(lambda client: client.get(key), seconds)
    return snapshot if isinstance(snapshot, bytes) else None


def stored_snapshot(client: redis.Redis, topic: str) -> dict[str, Any]:
    """Return the newest snapshot of ``topic``, decoded; empty before the first one.

    Raises redis.RedisError when Redis does not answer.
    """
    stored = client.get(snapshot_key(settings.TANGRAM_KEY_PREFIX, topic))
    return msgspec.msgpack.decode(stored) if isinstance(stored, bytes) else {}
