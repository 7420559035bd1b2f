"""Registry of stored images: name → the archive in the object store that any node may pull.

Web processes write it, after a node has imported the archive; nodes read it. An image that was imported on named nodes alone has no entry.
"""

from __future__ import annotations

import logging
from typing import Any, Final, cast

import msgspec
import redis.asyncio

from domain.redis_keys import Keys
from scheduler.runtime.redis.confirmation import ConfirmedCalls

log = logging.getLogger(__name__)


class StoredImage(msgspec.Struct, frozen=True):
    """An image whose archive is in the object store."""

    name: str
    #: Of the archive, which its key ends with.
    sha256: str
    size_bytes: int
    #: Of the files and variables, as nodes have it.
    digest: str


_decoder: Final = msgspec.json.Decoder(StoredImage)


class ImageRegistry:
    """The stored entries. All methods raise redis.RedisError when Redis does not answer."""

    def __init__(
        self, client: redis.asyncio.Redis, keys: Keys, confirmed: ConfirmedCalls | None = None
    ) -> None:
        """``confirmed``: what sends writes, where replicas must confirm what is answered."""
        self._client, self._key = client, keys.stored_images
        self._confirmed = confirmed or ConfirmedCalls(client, keys)

    async def add(self, image: StoredImage) -> None:
        """Add an entry, in place of a former one of the name."""
        await self._confirmed.call("HSET", self._key, image.name, msgspec.json.encode(image))

    async def find(self, name: str) -> StoredImage | None:
        """Return an entry; None when there is none."""
        asked: Any = self._client.hget(self._key, name)
        stored = cast("bytes | None", await asked)
        return None if stored is None else _read(stored)

    async def remove(self, name: str) -> bool:
        """Remove an entry; return whether there was one."""
        return bool(await self._confirmed.call("HDEL", self._key, name))

    async def all(self) -> list[StoredImage]:
        """Return all entries, by name."""
        asked: Any = self._client.hvals(self._key)
        found = map(_read, cast("list[bytes]", await asked))
        return sorted((each for each in found if each is not None), key=lambda each: each.name)


def _read(stored: bytes) -> StoredImage | None:
    try:
        return _decoder.decode(stored)
    except msgspec.DecodeError as error:  # of another version
        log.error("an entry of the stored images cannot be read: %s", error)
        return None
