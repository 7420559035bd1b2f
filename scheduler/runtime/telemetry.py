"""How the loop does: a few numbers over its last passes."""

from __future__ import annotations

from collections import deque

#: Passes kept.
WINDOW = 1024


class LoopStats:
    """Durations of the last passes that had something to do."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=WINDOW)
        self.passes = 0
        self.events = 0

    def record_pass(self, seconds: float, events: int) -> None:
        """Note one pass: deciding, committing and answering, without waiting."""
        self._seconds.append(seconds)
        self.passes += 1
        self.events += events

    def quantile_seconds(self, share: float) -> float | None:
        """Return a quantile of the durations kept; None before the first pass."""
        if not self._seconds:
            return None
        ordered = sorted(self._seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
