"""Statistics of the loop over its last passes."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import Final

from domain.redis_servers import ServerVersion

#: Passes in the statistics.
WINDOW = 1024
#: Upper bounds of the histogram over all passes, seconds; above the last one there is one more bin.
PASS_BOUNDS: Final = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class LoopStats:
    """Durations of the last passes with work to do."""

    def __init__(self, redis_package: str = "") -> None:
        """``redis_package``: revision of the Redis server's package, where that is known."""
        self.redis_package = redis_package
        self._seconds: deque[float] = deque(maxlen=WINDOW)
        self._deciding: deque[float] = deque(maxlen=WINDOW)
        #: Passes since the process began, by bin, and their total time.
        self.pass_counts = [0] * (len(PASS_BOUNDS) + 1)
        self.pass_sum_seconds = 0.0
        #: CPU time of the machine over all passes; a replay takes about as much, plus the decoding.
        self.decided_seconds = 0.0
        #: The server of the streams; None before it was asked.
        self.redis: ServerVersion | None = None
        #: Reports of nodes about other nodes, and other messages that nodes do not send (`report_collector`).
        self.refused_reports = 0
        self.passes = 0
        self.events = 0

    def record_pass(self, seconds: float, events: int) -> None:
        """Record one pass: deciding, committing and answering, without waiting."""
        self._seconds.append(seconds)
        self.pass_counts[bisect_left(PASS_BOUNDS, seconds)] += 1
        self.pass_sum_seconds += seconds
        self.passes += 1
        self.events += events

    def record_decision(self, seconds: float, cpu_seconds: float) -> None:
        """Record the time of the machine for one batch of events, its cycle included."""
        self._deciding.append(seconds)
        self.decided_seconds += cpu_seconds

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
