"""Moments at which the core must act by itself.

A heap of (time, kind, subject). Entries are never searched: whoever takes one out checks whether
it still holds (the lease may have been renewed), so renewing costs one push. Entries that do not
hold any more are swept out each time the heap has doubled.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from heapq import heapify, heappop, heappush

#: A heap shorter than this is not worth sweeping.
_SWEEP_FROM = 1024


class TimerKind(StrEnum):
    QUEUE_TIMEOUT = "queue_timeout"
    LEASE = "lease"
    TRAJECTORY = "trajectory"
    NODE_GRACE = "node_grace"
    NODE_DEAD = "node_dead"
    TOMBSTONE = "tombstone"
    DEFERRAL = "deferral"
    RESIZE = "resize"
    PACE = "pace"


Timer = tuple[float, TimerKind, str]


class Timers:
    """Pending moments, earliest first."""

    __slots__ = ("_heap", "_sweep_at")

    def __init__(self) -> None:
        self._heap: list[Timer] = []
        self._sweep_at = _SWEEP_FROM

    def set(self, at: float, kind: TimerKind, subject: str) -> None:
        """Ask for ``kind`` about ``subject`` at ``at``."""
        heappush(self._heap, (at, kind, subject))

    def first(self) -> Timer | None:
        """Return the earliest entry."""
        return self._heap[0] if self._heap else None

    def pop(self) -> Timer:
        """Take out the earliest entry."""
        return heappop(self._heap)

    def due(self, now: float) -> Timer | None:
        """Take out one entry that is due at ``now``."""
        return heappop(self._heap) if self._heap and self._heap[0][0] <= now else None

    @property
    def crowded(self) -> bool:
        """There may be many entries that do not hold any more."""
        return len(self._heap) >= self._sweep_at

    def sweep(self, holds: Callable[[Timer], bool]) -> None:
        """Drop entries that do not hold any more, if there may be many of them."""
        if self.crowded:
            self._heap = [timer for timer in self._heap if holds(timer)]
            heapify(self._heap)
            self._sweep_at = max(_SWEEP_FROM, 2 * len(self._heap))

    def pending(self) -> list[Timer]:
        """Return all entries, stale ones included, in no particular order."""
        return list(self._heap)
