"""Sweep of the object store: files that have arrived or never will, and snapshots and images that no entry of a registry refers to.

All are kept for a day from when they were stored last: an object is put before what refers to it.
"""

from __future__ import annotations

import logging
from time import time
from typing import Final

import redis

from domain.errors import TangramError
from scheduler.runtime.object_store.objects import FILES, IMAGES, SNAPSHOTS, ObjectStore
from scheduler.runtime.redis.image_registry import ImageRegistry
from scheduler.runtime.redis.snapshot_registry import SnapshotRegistry

log = logging.getLogger(__name__)

KEEP_SECONDS: Final = 86_400.0


async def sweep(
    store: ObjectStore,
    registry: SnapshotRegistry,
    images: ImageRegistry,
    now: float | None = None,
) -> int:
    """Delete what is not referred to; return the number of objects. What fails is logged, and the next sweep repeats it."""
    deleted, until = 0, (time() if now is None else now) - KEEP_SECONDS
    try:
        old = [
            each.key
            for area in (FILES, SNAPSHOTS, IMAGES)
            async for each in store.list(area)
            if each.modified_at < until
        ]
        # After the list: what is registered meanwhile was put less than a day ago.
        referred = await registry.forget_copies() | {each.sha256 for each in await images.all()}
        for key in old:
            if key.startswith(FILES) or key.rpartition("/")[2] not in referred:
                await store.delete(key)
                deleted += 1
    except (TangramError, OSError, redis.RedisError) as error:
        log.warning("the object store cannot be swept: %s", error)
    return deleted
