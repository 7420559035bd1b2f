"""Timers: when the core must act without an event.

A heap of (time, kind, subject). Entries are never searched: a popped entry is checked for being stale
(the lease may have been renewed), so renewing costs one push. Stale entries are swept each time the
heap has doubled.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from heapq import heapify, heappop, heappush
from math import inf

from domain.ids import ResourceId

#: A shorter heap is never swept.
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
    FLEET = "fleet"
    MOVE = "move"
    MOVES = "moves"


Timer = tuple[float, TimerKind, str]


class Timers:
    """Pending timers, earliest first."""

    __slots__ = ("_heap", "_sweep_at", "asked_wake", "crowded", "next_at", "pacing")

    def __init__(self) -> None:
        #: When the earliest entry is due; infinite without one. Read for every event.
        self.next_at = inf
        #: Many entries may be stale. Read in every pass.
        self.crowded = False
        #: When the shell was asked to wake the core; None while it was not.
        self.asked_wake: float | None = None
        #: When a cycle examines queues again that wait for time alone, by resource.
        self.pacing: dict[ResourceId, float] = {}
        self._heap: list[Timer] = []
        self._sweep_at = _SWEEP_FROM

    def set(self, at: float, kind: TimerKind, subject: str) -> None:
        """Set a timer of ``kind`` for ``subject``."""
        heappush(self._heap, (at, kind, subject))
        self._look()

    def set_pace(self, resource: ResourceId, at: float) -> None:
        """Let a cycle examine the queues for ``resource`` at ``at``, unless one does before."""
        due = self.pacing.get(resource)
        if due is None or at < due:
            self.pacing[resource] = at
            self.set(at, TimerKind.PACE, resource)

    def first(self) -> Timer | None:
        """Return the earliest entry."""
        return self._heap[0] if self._heap else None

    def pop(self) -> Timer:
        """Remove and return the earliest entry."""
        timer = heappop(self._heap)
        self._look()
        return timer

    def due(self, now: float) -> Timer | None:
        """Remove and return an entry that is due at ``now``; None without one."""
        return self.pop() if self.next_at <= now else None

    def sweep(self, holds: Callable[[Timer], bool]) -> None:
        """Drop entries for which ``holds`` is false, if many may be stale."""
        if self.crowded:
            self._heap = [timer for timer in self._heap if holds(timer)]
            heapify(self._heap)
            self._sweep_at = max(_SWEEP_FROM, 2 * len(self._heap))
            self._look()

    def _look(self) -> None:
        """Update the attributes that are read often."""
        self.next_at = self._heap[0][0] if self._heap else inf
        self.crowded = len(self._heap) >= self._sweep_at

    def pending(self) -> list[Timer]:
        """Return all entries, stale ones included, in no particular order."""
        return list(self._heap)
