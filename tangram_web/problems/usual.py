"""What is usual at this hour: the range of the p95 of completion times on the days before.

It rests on the rollups of five minutes that charts show, of at most a week. With fewer than `LEAST_POINTS`
points nothing is usual yet.
"""

from __future__ import annotations

from typing import Final

import redis

from domain.redis_keys import Keys
from tangram_web.live.rollups.store import RollupStore

_DAY: Final = 86_400.0
DAYS: Final = 7
#: Around the time of day.
AROUND_SECONDS: Final = 1800.0
LEAST_POINTS: Final = 6
_SIZE: Final = 300
_AGAIN_SECONDS: Final = 300.0


def usual_range(values: list[float]) -> tuple[float, float] | None:
    """Return the middle four fifths of values; None for too few."""
    if len(values) < LEAST_POINTS:
        return None
    ordered = sorted(values)
    tenth = len(ordered) // 10
    return ordered[tenth], ordered[-1 - tenth]


class UsualCompletion:
    """The usual p95 at an hour, read again every few minutes."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._store = RollupStore(client, keys)
        self._at = float("-inf")
        self._range: tuple[float, float] | None = None

    def at(self, now: float) -> tuple[float, float] | None:
        """Return the usual range at ``now``. Raises redis.RedisError."""
        if now - self._at >= _AGAIN_SECONDS:
            self._at = now
            self._range = usual_range(self._values(now))
        return self._range

    def _values(self, now: float) -> list[float]:
        values: list[float] = []
        for day in range(1, DAYS + 1):
            middle = now - day * _DAY
            found = self._store.read(_SIZE, middle - AROUND_SECONDS, middle + AROUND_SECONDS)
            for rollup in found:
                p95 = rollup.durations().by_phase()["act"]["p95"]
                if p95 is not None:
                    values.append(float(p95))
        return values
