"""Moments at which the core must act by itself.

A heap of (time, kind, subject). Entries are never searched: whoever takes one out checks whether
it still holds (the lease may have been renewed), so renewing costs one push. Entries that do not
hold any more are swept out each time the heap has doubled.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from heapq import heapify, heappop, heappush
from math import inf

from domain.ids import ResourceId

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

    __slots__ = ("_heap", "_sweep_at", "asked_wake", "crowded", "next_at", "pacing")

    def __init__(self) -> None:
        #: When the earliest entry is due; infinite without one. Read for every event.
        self.next_at = inf
        #: There may be many entries that do not hold any more. Read in every pass.
        self.crowded = False
        #: When the shell was asked to wake the core; None while it was not.
        self.asked_wake: float | None = None
        #: When queues that wait for time alone are looked at again, by resource.
        self.pacing: dict[ResourceId, float] = {}
        self._heap: list[Timer] = []
        self._sweep_at = _SWEEP_FROM

    def set(self, at: float, kind: TimerKind, subject: str) -> None:
        """Ask for ``kind`` about ``subject`` at ``at``."""
        heappush(self._heap, (at, kind, subject))
        self._look()

    def first(self) -> Timer | None:
        """Return the earliest entry."""
        return self._heap[0] if self._heap else None

    def pop(self) -> Timer:
        """Take out the earliest entry."""
        timer = heappop(self._heap)
        self._look()
        return timer

    def due(self, now: float) -> Timer | None:
        """Take out one entry that is due at ``now``."""
        return self.pop() if self.next_at <= now else None

    def sweep(self, holds: Callable[[Timer], bool]) -> None:
        """Drop entries that do not hold any more, if there may be many of them."""
        if self.crowded:
            self._heap = [timer for timer in self._heap if holds(timer)]
            heapify(self._heap)
            self._sweep_at = max(_SWEEP_FROM, 2 * len(self._heap))
            self._look()

    def _look(self) -> None:
        """Notice what is first, and whether there are many."""
        self.next_at = self._heap[0][0] if self._heap else inf
        self.crowded = len(self._heap) >= self._sweep_at

    def pending(self) -> list[Timer]:
        """Return all entries, stale ones included, in no particular order."""
        return list(self._heap)
