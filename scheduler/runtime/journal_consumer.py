"""Journal consumer: reads the journal in batches from a position of its own; rows and frames use it."""

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
from scheduler.runtime.recent_entries import MOST_FACTS, RecentEntries, facts_in
from scheduler.runtime.redis.journal import Journal

log = logging.getLogger(__name__)

Entries = Sequence[tuple[str, JournalEntry]]

#: Events and decisions a second from which on a consumer is busy: about 500 actions a second.
BUSY_FACTS_PER_SECOND = 2000.0
RETRY_SECONDS = 0.5
#: Longest wait for an entry; then a sign of life is shown.
BLOCK_SECONDS = 2.0
#: Pause before another attempt at an entry that cannot be read: an operator has to act.
UNREADABLE_SECONDS = 2.0


class JournalConsumer:
    """Passes journal entries to ``consume`` in batches, and keeps the journal from being trimmed.

    ``consume`` stores the position together with its results; ``start`` returns it. Exceptions in
    ``retry_on`` (the database is away) are retried; any other ends the consumer. At an entry that it
    cannot read it waits and reports so: its results would have a hole.

    Entries that arrive within ``pause_seconds`` are consumed together, under load those of
    ``busy_pause_seconds``; there is no pause while it lags. ``recent``: entries that another reader of
    this process has decoded; they are used under load.
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
        busy_pause_seconds: float | None = None,
        recent: RecentEntries | None = None,
        page: int = 200,
        retry_on: tuple[type[Exception], ...] = (),
        holds_journal: bool = True,
    ) -> None:
        self._client = client
        self._keys = keys
        self._name = name
        self._start = start
        self._consume = consume
        self._pause_seconds = pause_seconds
        self._busy_pause_seconds = (
            pause_seconds if busy_pause_seconds is None else busy_pause_seconds
        )
        self._recent = recent
        self._page = self._count = page
        self._retry_on: tuple[type[Exception], ...] = (redis.RedisError, *retry_on)
        self._holds_journal = holds_journal
        self._journal = Journal(client, keys, skips_set_aside=True)
        self._worker = process_name(name)
        self._shown_at = 0.0
        #: The last read found entries, and as many as it might.
        self._some = self._behind = False
        self._stepped_at = monotonic()
        #: Events and decisions a second of the last step.
        self._rate = 0.0
        #: The last entry that could not be read.
        self._unreadable_id = ""

    def run(self, stop: threading.Event) -> None:
        """Consume until ``stop`` is set."""
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
                self._report_unreadable(error)
                stop.wait(UNREADABLE_SECONDS)
            if self._some and not self._behind and (pause := self._pause()):
                stop.wait(pause)

    def _step(self, position: str) -> str:
        entries = self._read(position)
        self._some, facts = bool(entries), facts_in(entries)
        now = monotonic()
        self._rate = facts / max(now - self._stepped_at, 1e-3)
        self._stepped_at = now
        if entries:
            # The next page is about as large as a batch may be.
            self._count = min(self._page, max(1, len(entries) * MOST_FACTS // max(1, facts)))
            self._consume(entries)
            position = entries[-1][0]
            self._hold(position)
        return position

    def _pause(self) -> float:
        """Return the seconds until the next step: under load, no more than half of a batch arrives."""
        if self._rate < BUSY_FACTS_PER_SECOND:
            return self._pause_seconds
        return min(self._busy_pause_seconds, MOST_FACTS / 2 / self._rate)

    def _read(self, position: str) -> Entries:
        if self._recent is not None and self._rate >= BUSY_FACTS_PER_SECOND:
            taken = self._recent.take(position)
            if taken:
                self._behind = False
                return taken
        found = self._journal.read(position, count=self._count, block_seconds=BLOCK_SECONDS)
        self._behind = len(found) == self._count
        return found

    def _report_unreadable(self, error: Unreadable) -> None:
        """Log an entry that cannot be read once; signs of life carry the reason all the time."""
        if error.entry_id != self._unreadable_id:
            self._unreadable_id = error.entry_id
            log.error("%s cannot continue: %s", self._name, error)
        with suppress(redis.RedisError):
            show_life(self._client, self._keys, self._worker, self._name, why=str(error))

    def _hold(self, position: str) -> None:
        if self._holds_journal:
            self._journal.set_position(self._name, position)

    def _show_life(self, position: str) -> None:
        if monotonic() - self._shown_at >= LIFE_SECONDS:
            self._shown_at = monotonic()
            show_life(self._client, self._keys, self._worker, self._name, position=position)
