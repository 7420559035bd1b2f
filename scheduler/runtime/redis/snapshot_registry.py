"""Registry of snapshots: project and name → what it is, and the node that has it.

A node adds an entry once the snapshot is on its disk, and deletes its own snapshots that have none (they were
removed, or replaced while it was away). A copy in the object store is an entry of its own: its digest and size, for
exactly these facts, so that a snapshot that is taken again under the same name has none of the former one.
"""

from __future__ import annotations

import logging
from typing import Any, Final, cast

import msgspec
import redis.asyncio

from domain.redis_keys import Keys
from domain.snapshots import SnapshotFacts
from scheduler.runtime.object_store.objects import ContentDigest
from scheduler.runtime.redis.confirmation import ConfirmedCalls

log = logging.getLogger(__name__)

#: A removal is remembered for so long; a worker that is away longer takes the snapshot again.
REMEMBERED_SECONDS: Final = 7 * 24 * 3600

_decoder: Final = msgspec.json.Decoder(SnapshotFacts)
_contents: Final = msgspec.json.Decoder(ContentDigest)


class SnapshotRegistry:
    """The stored entries. All methods raise redis.RedisError when Redis does not answer."""

    def __init__(
        self, client: redis.asyncio.Redis, keys: Keys, confirmed: ConfirmedCalls | None = None
    ) -> None:
        """``confirmed``: what sends removals, where replicas must confirm what is answered. A node's report confirms an addition."""
        self._client = client
        self._confirmed = confirmed or ConfirmedCalls(client, keys)
        self._key, self._copies = keys.snapshots, keys.snapshot_copies

    async def add(self, facts: SnapshotFacts) -> bool:
        """Add an entry; return False when the name is used."""
        field = _field(facts.project, facts.name)
        added: Any = self._client.hsetnx(self._key, field, msgspec.json.encode(facts).decode())
        return bool(await added)

    async def find(self, project: str, name: str) -> SnapshotFacts | None:
        """Return an entry; None when there is none."""
        asked: Any = self._client.hget(self._key, _field(project, name))
        stored = cast("bytes | None", await asked)
        return None if stored is None else _read(stored)

    async def remove(self, facts: SnapshotFacts) -> None:
        """Remove an entry. Its request is remembered: a node that starts may read the order again."""
        await self._confirmed.call_all(
            ("SET", self._removal(facts.request_id), 1, "EX", REMEMBERED_SECONDS),
            ("HDEL", self._key, _field(facts.project, facts.name)),
            ("HDEL", self._copies, _copy_field(facts)),
        )

    async def was_removed(self, request_id: str) -> bool:
        """Return whether the snapshot of a request was removed lately."""
        return bool(await self._client.exists(self._removal(request_id)))

    async def add_copy(self, facts: SnapshotFacts, content: ContentDigest) -> None:
        """Add the copy of a snapshot, which is in the store."""
        stored = msgspec.json.encode(content).decode()
        adding: Any = self._client.hsetnx(self._copies, _copy_field(facts), stored)
        await adding

    async def copy_of(self, facts: SnapshotFacts) -> ContentDigest | None:
        """Return the copy of a snapshot; None when there is none."""
        asked: Any = self._client.hget(self._copies, _copy_field(facts))
        stored = cast("bytes | None", await asked)
        return None if stored is None else _contents.decode(stored)

    async def forget_copies(self) -> set[str]:
        """Remove the entries of copies of no snapshot; return the digests of all others."""
        asked: Any = self._client.hgetall(self._copies)
        stored = cast("dict[bytes, bytes]", await asked)
        known = {_copy_field(each).encode() for each in await self.all()}
        if unknown := [field for field in stored if field not in known]:
            removing: Any = self._client.hdel(self._copies, *[each.decode() for each in unknown])
            await removing
        return {_contents.decode(text).sha256 for field, text in stored.items() if field in known}

    def _removal(self, request_id: str) -> str:
        return f"{self._key}:removed:{request_id}"

    async def all(self, project: str | None = None) -> list[SnapshotFacts]:
        """Return the entries of a project, or of all, by name."""
        asked: Any = self._client.hgetall(self._key)
        stored = cast("dict[bytes, bytes]", await asked)
        found = [each for each in map(_read, stored.values()) if each is not None]
        chosen = [each for each in found if project is None or each.project == project]
        return sorted(chosen, key=lambda each: (each.project, each.name))


def _field(project: str, name: str) -> str:
    return f"{project}/{name}"


def _copy_field(facts: SnapshotFacts) -> str:
    return f"{_field(facts.project, facts.name)}@{facts.request_id}"


def _read(stored: bytes) -> SnapshotFacts | None:
    try:
        return _decoder.decode(stored)
    except msgspec.DecodeError as error:  # of another version
        log.error("an entry of the snapshots cannot be read: %s", error)
        return None
