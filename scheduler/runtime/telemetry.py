"""How the loop does: a few numbers over its last passes."""

from __future__ import annotations

from collections import deque

#: Passes kept.
WINDOW = 1024


class LoopStats:
    """Durations of the last passes that had something to do."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=WINDOW)
        self._deciding: deque[float] = deque(maxlen=WINDOW)
        self.passes = 0
        self.events = 0

    def record_pass(self, seconds: float, events: int) -> None:
        """Note one pass: deciding, committing and answering, without waiting."""
        self._seconds.append(seconds)
        self.passes += 1
        self.events += events

    def record_decision(self, seconds: float) -> None:
        """Note how long the machine took over one batch of events, its cycle included."""
        self._deciding.append(seconds)

    def quantile_seconds(self, share: float) -> float | None:
        """Return a quantile of whole passes; None before the first one."""
        return _quantile(self._seconds, share)

    def deciding_quantile_seconds(self, share: float) -> float | None:
        """Return a quantile of the machine's part of passes; None before the first one."""
        return _quantile(self._deciding, share)


def _quantile(seconds: deque[float], share: float) -> float | None:
    if not seconds:
        return None
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
