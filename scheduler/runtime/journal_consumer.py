"""Following the journal from a place of one's own: rows and frames are made this way."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic

import redis

from domain.codec import JournalEntry
from domain.errors import Unreadable
from domain.redis_keys import Keys
from scheduler.runtime.liveness import LIFE_SECONDS, process_name, show_life
from scheduler.runtime.redis.journal import Journal

log = logging.getLogger(__name__)

Entries = Sequence[tuple[str, JournalEntry]]

RETRY_SECONDS = 0.5
#: Between two looks at an entry that cannot be read: an operator has to do something about it.
UNREADABLE_SECONDS = 2.0


class Follower:
    """Hands journal entries to a consumer in batches, and keeps the journal from being trimmed.

    The consumer stores its own position together with its results; ``start`` returns it. What it
    raises as ``retry_on`` (its database is away) is tried again; anything else ends the follower.
    At an entry that it cannot read it waits, and says so: what it makes would have a hole.
    """

    def __init__(
        self,
        client: redis.Redis,
        keys: Keys,
        name: str,
        start: Callable[[], str],
        consume: Callable[[Entries], None],
        *,
        pause_seconds: float = 0.0,
        page: int = 200,
        retry_on: tuple[type[Exception], ...] = (),
        holds_journal: bool = True,
    ) -> None:
        self._client = client
        self._keys = keys
        self._name = name
        self._start = start
        self._consume = consume
        #: Entries that come within this time are consumed together; whoever is behind does not wait.
        self._pause_seconds = pause_seconds
        self._page = page
        self._retry_on: tuple[type[Exception], ...] = (redis.RedisError, *retry_on)
        self._holds_journal = holds_journal
        self._journal = Journal(client, keys, passes_over=True)
        self._worker = process_name(name)
        self._shown_at = 0.0
        self._behind = False
        #: The last entry that could not be read.
        self._stands_before = ""

    def run(self, stop: threading.Event) -> None:
        """Follow until ``stop`` is set."""
        position: str | None = None
        while not stop.is_set():
            try:
                if position is None:
                    position = self._start()
                    self._hold(position)
                position = self._step(position)
                self._show_life(position)
            except self._retry_on as error:
                log.warning("%s waits: %s", self._name, error)
                position = None
                stop.wait(RETRY_SECONDS)
            except Unreadable as error:
                self._stand_still(error)
                stop.wait(UNREADABLE_SECONDS)
            if self._pause_seconds and not self._behind:
                stop.wait(self._pause_seconds)

    def _step(self, position: str) -> str:
        entries = self._journal.read(position, count=self._page, block_seconds=1.0)
        self._behind = len(entries) == self._page
        if entries:
            self._consume(entries)
            position = entries[-1][0]
            self._hold(position)
        return position

    def _stand_still(self, error: Unreadable) -> None:
        """Tell once for each entry why nothing more comes; signs of life tell it all the time."""
        if error.entry_id != self._stands_before:
            self._stands_before = error.entry_id
            log.error("%s stands still: %s", self._name, error)
        with suppress(redis.RedisError):
            show_life(self._client, self._keys, self._worker, self._name, why=str(error))

    def _hold(self, position: str) -> None:
        if self._holds_journal:
            self._journal.set_position(self._name, position)

    def _show_life(self, position: str) -> None:
        if monotonic() - self._shown_at >= LIFE_SECONDS:
            self._shown_at = monotonic()
            show_life(self._client, self._keys, self._worker, self._name, position=position)
