"""Entries of the journal that one reader has decoded lately, for a second reader in the same process.

Theory of operation. The reader that is faster adds each page that it reads, together with the position
behind which it was read. The other one takes what follows its own position, if pages without a gap hold
that; else it reads the journal. So neither waits for the other, and a missing page costs a reading.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from domain.codec import JournalEntry
from scheduler.runtime.redis.journal import id_parts

#: Events and decisions that are kept, and that are taken at once: about 10,000 actions, 25 MB.
MOST_FACTS: Final = 40_000


class _Page(NamedTuple):
    """Everything between two positions, the second one included."""

    after: tuple[int, int]
    last: tuple[int, int]
    entries: Sequence[tuple[str, JournalEntry]]
    facts: int


def facts_in(entries: Sequence[tuple[str, JournalEntry]]) -> int:
    """Return the number of events and decisions in entries."""
    return sum(len(entry.events) + len(entry.decisions) for _, entry in entries)


class RecentEntries:
    """Pages that were added and not taken, without a gap between them. Safe for threads."""

    def __init__(self, most_facts: int = MOST_FACTS) -> None:
        self._most_facts = most_facts
        self._pages: deque[_Page] = deque()
        self._facts = 0
        self._lock = threading.Lock()

    def add(self, after: str, entries: Sequence[tuple[str, JournalEntry]]) -> None:
        """Keep what was read behind ``after``; the oldest pages go when there are too many."""
        if not entries:
            return
        page = _Page(id_parts(after), id_parts(entries[-1][0]), entries, facts_in(entries))
        with self._lock:
            if self._pages and self._pages[-1].last != page.after:
                self._clear()
            self._pages.append(page)
            self._facts += page.facts
            while self._facts > self._most_facts:
                self._drop()

    def take(self, position: str) -> list[tuple[str, JournalEntry]]:
        """Return the entries behind ``position`` and forget them; nothing if the first of them is not here."""
        at, found = id_parts(position), list[tuple[str, JournalEntry]]()
        with self._lock:
            while self._pages and self._pages[0].last <= at:
                self._drop()
            if self._pages and self._pages[0].after > at:
                return []
            while self._pages:
                page = self._drop()
                begun = page.after < at  # the first page only
                found += [e for e in page.entries if id_parts(e[0]) > at] if begun else page.entries
            return found

    def _drop(self) -> _Page:
        page = self._pages.popleft()
        self._facts -= page.facts
        return page

    def _clear(self) -> None:
        self._pages.clear()
        self._facts = 0
