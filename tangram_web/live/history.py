"""The last five minutes, one point a second: what the charts draw.

A second is sealed when a later one begins: its rates are final, its levels are those at its end.
Points carry the journal second they belong to, so a reader that missed some knows which.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import numpy as np

#: Seconds kept, and drawn.
LENGTH: Final = 300
#: Points in an ordinary frame. A reader that got a frame within this many seconds has them all.
TAIL: Final = 12

COLUMNS: Final = (
    "submitted",
    "finished",
    "queued",
    "granted",
    "running",
    "cores",
    "act_p50",
    "act_p95",
    "act_p99",
    "queue_mean",
    "overhead_mean",
    "execution_mean",
)


class History:
    """A ring of sealed seconds, column by column."""

    def __init__(self) -> None:
        #: First second that is not sealed yet; None before the first entry.
        self.open_second: int | None = None
        self._columns: dict[str, deque[float]] = {name: deque(maxlen=LENGTH) for name in COLUMNS}

    def seal(self, values: dict[str, float]) -> None:
        """Append the point of the open second and open the next one."""
        if self.open_second is None:
            return
        for name, column in self._columns.items():
            column.append(values.get(name, float("nan")))
        self.open_second += 1

    def points(self, length: int) -> dict[str, Any]:
        """Return the newest ``length`` points: first second, and float32 columns as bytes."""
        sealed = min(length, len(self._columns["submitted"]))
        first = (self.open_second or 0) - sealed
        return {
            "first": first,
            "count": sealed,
            "columns": {name: _tail(column, sealed) for name, column in self._columns.items()},
        }

    def rate(self, name: str, seconds: int) -> float:
        """Return the mean of the newest sealed points of a column."""
        column = self._columns[name]
        taken = min(seconds, len(column))
        return sum(column[-back] for back in range(1, taken + 1)) / taken if taken else 0.0


def _tail(column: deque[float], length: int) -> bytes:
    skip = len(column) - length
    values = np.fromiter((value for at, value in enumerate(column) if at >= skip), "<f4", length)
    return values.tobytes()
