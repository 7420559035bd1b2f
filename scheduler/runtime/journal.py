"""Reading the journal, and trimming it behind its slowest consumer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import redis

from domain.codec import JOURNAL_FIELD, JournalEntry, decode_entry
from domain.keys import Keys
from scheduler.runtime.lane import Lane, read_stream

#: Entries fetched at once when reading much.
PAGE = 500
START = "0-0"


def id_parts(stream_id: str) -> tuple[int, int]:
    """Return a stream id as two numbers, for comparing."""
    milliseconds, _, sequence = stream_id.partition("-")
    return int(milliseconds), int(sequence or 0)


class Journal:
    """The journal as its readers see it."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client = client
        self._lane = Lane(client)
        self._keys = keys

    def after(self, stream_id: str) -> Iterator[tuple[str, JournalEntry]]:
        """Yield what is there behind ``stream_id``, without waiting."""
        while page := self.read(stream_id, count=PAGE):
            yield from page
            stream_id = page[-1][0]

    def read(
        self, stream_id: str, *, count: int, block_seconds: float | None = None
    ) -> list[tuple[str, JournalEntry]]:
        """Return up to ``count`` entries behind ``stream_id``, waiting for the first one."""
        entries = read_stream(self._lane, self._keys.journal, stream_id, count, block_seconds)
        return [(key, decode_entry(fields[JOURNAL_FIELD])) for key, fields in entries]

    def last_id(self) -> str:
        """Return the id of the newest entry."""
        newest = cast(
            "list[tuple[bytes, Any]]", self._client.xrevrange(self._keys.journal, count=1)
        )
        return newest[0][0].decode() if newest else START

    def set_position(self, consumer: str, stream_id: str) -> None:
        """Say that ``consumer`` is done with everything up to ``stream_id``."""
        self._client.hset(self._keys.positions, consumer, stream_id)

    def trim(self, snapshot_id: str, retention_seconds: float) -> int:
        """Drop entries that are older than the retention and that nobody needs any more.

        Nobody needs what lies before the snapshot and before the position of each consumer.
        """
        positions = cast("list[bytes]", self._client.hvals(self._keys.positions))
        seconds, _ = self._client.time()
        oldest = f"{int((seconds - retention_seconds) * 1000)}-0"
        bounds = [snapshot_id, oldest, *(position.decode() for position in positions)]
        dropped: int = self._client.xtrim(self._keys.journal, minid=min(bounds, key=id_parts))
        return dropped
