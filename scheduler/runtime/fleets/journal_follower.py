"""JournalFollower: reads the journal for the keeper of fleets, from a stored position or from its oldest entry.

It stores no position and holds no entries back. An entry that cannot be read is skipped, and its readers are informed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, Protocol, cast

import redis
import redis.asyncio

from domain.codec import JournalEntry, read_entry
from domain.errors import Unreadable
from domain.redis_keys import Keys
from scheduler.runtime.redis.clients import keep_running
from scheduler.runtime.redis.connection import AsyncRedisConnection, read_stream_async
from scheduler.runtime.redis.journal import START, id_parts

log = logging.getLogger(__name__)

_ENTRIES: Final = 128
_BLOCK_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 0.2
#: Entries are read for so long at a time: probes and answers go on beside it.
_BUSY_SECONDS: Final = 0.002


class ReadsJournal(Protocol):
    """What follows the journal."""

    def read(self, stream_id: str, entry: JournalEntry) -> None:
        """Take one entry."""

    def skipped(self) -> None:
        """An entry could not be read."""

    def caught_up(self) -> None:
        """All entries that there were at the start are read; called once."""


class JournalFollower:
    """One reader of the journal."""

    def __init__(
        self, client: redis.asyncio.Redis, keys: Keys, readers: Sequence[ReadsJournal]
    ) -> None:
        self._client, self._keys, self._readers = client, keys, readers
        self._connection = AsyncRedisConnection(client)

    async def starts_behind(self, stream_id: str) -> bool:
        """Return whether the journal has all entries behind ``stream_id``. Raises RedisError."""
        answer = await self._client.xrange(self._keys.journal, count=1)
        oldest = cast("list[tuple[bytes, object]]", answer)
        return bool(oldest) and id_parts(oldest[0][0].decode()) <= id_parts(stream_id)

    async def run(self, position: str = START) -> None:
        """Read behind ``position`` until cancelled."""
        try:
            await self._follow(position)
        finally:
            self._connection.close()

    async def _follow(self, position: str) -> None:
        until: str | None = None
        caught_up = False
        while keep_running():
            try:
                if until is None:
                    until = await self._newest()
                entries = await read_stream_async(
                    self._connection, self._keys.journal, position, _ENTRIES,
                    _BLOCK_SECONDS if caught_up else None,
                )  # fmt: skip
            except redis.RedisError as error:
                log.warning("the journal cannot be read: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            position = await self._take(entries) or position
            if not caught_up and id_parts(position) >= id_parts(until or START):
                caught_up = True
                for reader in self._readers:
                    reader.caught_up()
            elif not caught_up and not entries:  # what there was is trimmed
                until = position

    async def _newest(self) -> str:
        answer = await self._client.xrevrange(self._keys.journal, count=1)
        newest = cast("list[tuple[bytes, object]]", answer)
        return newest[0][0].decode() if newest else START

    async def _take(self, entries: Sequence[tuple[str, dict[bytes, bytes]]]) -> str | None:
        """Pass entries on; return the id of the last one."""
        loop = asyncio.get_running_loop()
        began, position = loop.time(), None
        for position, fields in entries:
            if loop.time() - began > _BUSY_SECONDS:
                await asyncio.sleep(0)
                began = loop.time()
            try:
                entry = read_entry(position, fields)
            except Unreadable as error:
                log.error("a journal entry is skipped: %s", error)
                for reader in self._readers:
                    reader.skipped()
                continue
            for reader in self._readers:
                reader.read(position, entry)
        return position
