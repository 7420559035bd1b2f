"""Fetcher of images: the archive of an image from the object store, for a node that lacks it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import redis.asyncio

from domain.errors import NotFound, Unavailable
from domain.ports.images import MAX_IMAGE_BYTES
from domain.redis_keys import Keys
from scheduler.runtime.object_store.contents import stored_content
from scheduler.runtime.object_store.objects import ALL_PROJECTS, IMAGES, ObjectStore, object_key
from scheduler.runtime.redis.image_registry import ImageRegistry


class ImageFetcher:
    """Gets images that were imported for all nodes."""

    def __init__(self, client: redis.asyncio.Redis, keys: Keys, store: ObjectStore) -> None:
        self._registry, self._store = ImageRegistry(client, keys), store

    async def fetch(self, name: str) -> AsyncGenerator[bytes, None]:
        """Yield the archive of an image. Raises NotFound for one that is not stored, Unavailable."""
        try:
            image = await self._registry.find(name)
        except redis.exceptions.NoPermissionError:
            raise NotFound("the Redis user of this node is of an earlier version") from None
        except redis.RedisError as error:
            raise Unavailable(f"redis does not answer: {error}") from None
        if image is None:
            raise NotFound(f"image {name!r} is not in the object store")
        key = object_key(IMAGES, ALL_PROJECTS, image.sha256)
        content = await stored_content(self._store, key, MAX_IMAGE_BYTES)
        async with aclosing(content.pieces) as pieces:
            async for piece in pieces:
                yield piece
