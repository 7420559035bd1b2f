"""Reading the journal, and trimming it behind its slowest consumer."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, cast

import redis

from domain.codec import JOURNAL_FIELD, JournalEntry, read_entry
from domain.dead_letters import JOURNAL, name_of
from domain.errors import Unreadable
from domain.redis_keys import Keys
from scheduler.runtime.redis.connection import Lane, read_stream

#: Entries fetched at once when reading much.
PAGE = 500
START = "0-0"


def id_parts(stream_id: str) -> tuple[int, int]:
    """Return a stream id as two numbers, for comparing."""
    milliseconds, _, sequence = stream_id.partition("-")
    return int(milliseconds), int(sequence or 0)


class Journal:
    """The journal as its readers see it. Whoever has read and goes on without it closes it.

    No reader goes past an entry that it cannot read. ``passes_over``: except one that an operator
    has laid aside (`domain.dead_letters`); right for what only shows the journal, never for what
    decides by it.
    """

    def __init__(self, client: redis.Redis, keys: Keys, *, passes_over: bool = False) -> None:
        self._client = client
        self._lane = Lane(client)
        self._keys = keys
        self._passes_over = passes_over

    def after(self, stream_id: str) -> Iterator[tuple[str, JournalEntry]]:
        """Yield what is there behind ``stream_id``, without waiting."""
        while page := self.read(stream_id, count=PAGE):
            yield from page
            stream_id = page[-1][0]

    def read(
        self, stream_id: str, *, count: int, block_seconds: float | None = None
    ) -> list[tuple[str, JournalEntry]]:
        """Return up to ``count`` entries behind ``stream_id``, waiting for the first one.

        Raises Unreadable when the first of them cannot be read, and redis.RedisError.
        """
        entries = read_stream(self._lane, self._keys.journal, stream_id, count, block_seconds)
        found: list[tuple[str, JournalEntry]] = []
        for key, fields in entries:
            try:
                found.append((key, read_entry(key, fields)))
            except Unreadable:
                if found:
                    return found  # what is before it is not held up
                if not (self._passes_over and self._laid_aside(key)):
                    raise
                stream_id = key
        return found if found or not entries else self.read(stream_id, count=count)

    def _laid_aside(self, stream_id: str) -> bool:
        name = name_of(JOURNAL, stream_id, JOURNAL_FIELD.decode())
        return bool(self._client.hexists(self._keys.dead_letters, name))

    def close(self) -> None:
        """Give the connection of reading up; the pool would keep it, whoever forgets us."""
        self._lane.close()

    def last_id(self) -> str:
        """Return the id of the newest entry."""
        newest = cast(
            "list[tuple[bytes, Any]]", self._client.xrevrange(self._keys.journal, count=1)
        )
        return newest[0][0].decode() if newest else START

    def set_position(self, consumer: str, stream_id: str) -> None:
        """Say that ``consumer`` is done with everything up to ``stream_id``."""
        self._client.hset(self._keys.positions, consumer, stream_id)

    def trim(
        self, snapshot_id: str, retention_seconds: float, consumers: Collection[str] = ()
    ) -> int:
        """Drop entries that are older than the retention and that nobody needs any more.

        Nobody needs what lies before the snapshot and before the position of each consumer.
        ``consumers`` need everything until they have a position.
        """
        stored = cast("dict[bytes, bytes]", self._client.hgetall(self._keys.positions))
        if any(consumer.encode() not in stored for consumer in consumers):
            return 0
        positions = stored.values()
        seconds, _ = self._client.time()
        oldest = f"{int((seconds - retention_seconds) * 1000)}-0"
        bounds = [snapshot_id, oldest, *(position.decode() for position in positions)]
        dropped: int = self._client.xtrim(self._keys.journal, minid=min(bounds, key=id_parts))
        return dropped
