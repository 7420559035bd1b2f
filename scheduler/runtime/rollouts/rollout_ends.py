"""Ends of rollouts, as the journal has them: resolves requests that wait, and caches the latest ends.

A reducer beside the tail of the journal in each web process.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from typing import Final, NamedTuple

from domain.codec import JournalEntry
from domain.decisions import FinishRollout
from domain.journal_reducer import JournalReducer, on

#: Latest ends in the cache.
RECENT: Final = 4096


class RolloutEnd(NamedTuple):
    """A decision, and its wall-clock time in seconds since the epoch."""

    finish: FinishRollout
    at: float


class RolloutEnds(JournalReducer):
    """The latest ends of rollouts, and the waits for others."""

    def __init__(self) -> None:
        super().__init__()
        self._recent: OrderedDict[str, RolloutEnd] = OrderedDict()
        self._waiting: dict[str, list[asyncio.Future[RolloutEnd | None]]] = defaultdict(list)
        self._at = 0.0

    def recent(self, rollout: str) -> RolloutEnd | None:
        """Return the end of a rollout that finished lately; None for any other."""
        return self._recent.get(rollout)

    def of(self, rollout: str) -> asyncio.Future[RolloutEnd | None]:
        """Return a future of an end; None: query the rollout. `discard` it after use."""
        future: asyncio.Future[RolloutEnd | None] = asyncio.get_running_loop().create_future()
        self._waiting[rollout].append(future)
        return future

    def discard(self, rollout: str, future: asyncio.Future[RolloutEnd | None]) -> None:
        """Drop a future; idempotent."""
        waiting = self._waiting.get(rollout, [])
        if future in waiting:
            waiting.remove(future)
            if not waiting:
                del self._waiting[rollout]

    def skipped(self) -> None:
        """Let all waiting requests query: an entry that could not be read may concern them."""
        for rollout in list(self._waiting):
            self._resolve(rollout, None)

    def begin(self, entry: JournalEntry) -> None:
        """Record the time of ``entry``."""
        self._at = entry.at + entry.wall_offset_seconds

    @on(FinishRollout)
    def _finished(self, finish: FinishRollout) -> None:
        end = self._recent[finish.rollout_id] = RolloutEnd(finish, self._at)
        if len(self._recent) > RECENT:
            self._recent.popitem(last=False)
        self._resolve(finish.rollout_id, end)

    def _resolve(self, rollout: str, end: RolloutEnd | None) -> None:
        for future in self._waiting.pop(rollout, ()):
            if not future.done():
                future.set_result(end)
