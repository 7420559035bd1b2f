"""Term of a leader: its machine and its place in the journal, from one recovery to the next."""

from __future__ import annotations

import time
from dataclasses import dataclass

from scheduler.core.machine import Machine


class JournalClock:
    """Journal time: seconds that never run backward, across restarts and leaders.

    Starts at the wall clock or at the newest journal time, whichever is later, and follows the
    monotonic clock from there; steps of the wall clock do not change it.
    """

    def __init__(self, last_at: float = 0.0) -> None:
        self._start = max(last_at, time.time())
        self._origin = time.monotonic()

    def now(self) -> float:
        """Return journal time."""
        return self._start + (time.monotonic() - self._origin)

    def wall_offset(self) -> float:
        """Return wall clock minus journal time."""
        return time.time() - self.now()


@dataclass
class Term:
    """What a leader has recovered and continues with."""

    machine: Machine
    clock: JournalClock
    #: The newest entry of the journal, and its number.
    journal_id: str
    seq: int
