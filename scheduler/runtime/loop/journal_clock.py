"""Journal time: what the core calls now."""

from __future__ import annotations

import time


class JournalClock:
    """Seconds that never run backward, across restarts and leaders.

    Starts at the wall clock or at the last journalled time, whichever is later, and goes on with
    the monotonic clock; steps of the wall clock do not touch it.
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
