"""Journal stream: reading it, and trimming it behind its slowest consumer."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, cast

import redis

from domain.codec import JOURNAL_FIELD, JournalEntry, read_entry
from domain.dead_letters import JOURNAL, name_of
from domain.errors import Unreadable
from domain.redis_keys import Keys
from scheduler.runtime.redis.connection import Entries, RedisConnection, read_from, read_stream

#: Entries fetched at once when reading much.
PAGE = 500
START = "0-0"


def id_parts(stream_id: str) -> tuple[int, int]:
    """Return a stream id as two numbers that compare in order."""
    milliseconds, _, sequence = stream_id.partition("-")
    return int(milliseconds), int(sequence or 0)


class Journal:
    """Reader of the journal; `close` it after use.

    No reader continues behind an entry that it cannot read. ``skips_set_aside``: except one that an
    operator has set aside (`domain.dead_letters`); for readers that only show the journal, never for
    those that decide by it.
    """

    def __init__(self, client: redis.Redis, keys: Keys, *, skips_set_aside: bool = False) -> None:
        self._client = client
        self._connection = RedisConnection(client)
        self._keys = keys
        self._skips_set_aside = skips_set_aside

    def after(self, stream_id: str) -> Iterator[tuple[str, JournalEntry]]:
        """Yield the entries behind ``stream_id``, without waiting for more."""
        while page := self.read(stream_id, count=PAGE):
            yield from page
            stream_id = page[-1][0]

    def read(
        self, stream_id: str, *, count: int, block_seconds: float | None = None
    ) -> list[tuple[str, JournalEntry]]:
        """Return up to ``count`` entries behind ``stream_id``, waiting for the first one.

        Raises Unreadable when the first of them cannot be read, and redis.RedisError.
        """
        entries = read_stream(self._connection, self._keys.journal, stream_id, count, block_seconds)
        found: list[tuple[str, JournalEntry]] = []
        for key, fields in entries:
            try:
                found.append((key, read_entry(key, fields)))
            except Unreadable:
                if found:
                    return found  # entries before it are not delayed
                if not (self._skips_set_aside and self._is_set_aside(key)):
                    raise
                stream_id = key
        return found if found or not entries else self.read(stream_id, count=count)

    def stored(self, first: str, count: int) -> Entries:
        """Return up to ``count`` entries from ``first`` on, that one included, as they are stored. Raises redis.RedisError."""
        return read_from(self._connection, self._keys.journal, first, count)

    def _is_set_aside(self, stream_id: str) -> bool:
        name = name_of(JOURNAL, stream_id, JOURNAL_FIELD.decode())
        return bool(self._client.hexists(self._keys.dead_letters, name))

    def close(self) -> None:
        """Close the connection: the pool would keep it open."""
        self._connection.close()

    def last_id(self) -> str:
        """Return the id of the newest entry."""
        newest = cast(
            "list[tuple[bytes, Any]]", self._client.xrevrange(self._keys.journal, count=1)
        )
        return newest[0][0].decode() if newest else START

    def set_position(self, consumer: str, stream_id: str) -> None:
        """Store that ``consumer`` has consumed everything up to ``stream_id``."""
        self._client.hset(self._keys.positions, consumer, stream_id)

    def trim(
        self, snapshot_id: str, retention_seconds: float, consumers: Collection[str] = ()
    ) -> int:
        """Drop entries that are older than the retention, the snapshot and each consumer's position.

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
