"""Trends of the strip of resources: held and wanted parts of each over time, as shares of its capacity.

The last half hour is in every frame. Longer ranges have points of means, are stored in Redis when one of them has another
point and when the process ends, and are read by request. A point without a measurement is None.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
import redis

from domain.redis_keys import Keys
from tangram_web.problems.resources import ResourceRow

#: Points of a trend, and the seconds between two of the shortest: half an hour.
TREND_POINTS: Final = 120
TREND_SECONDS: Final = 15.0
#: The choices on the Overview: seconds and their name. The first one is in the frames.
TREND_RANGES: Final = ((1800, "30 min"), (10_800, "3 h"), (86_400, "24 h"))

#: Held and wanted.
Point = tuple[float, float]


class LongTrend(msgspec.Struct):
    """Points of one longer range."""

    step_seconds: float
    #: Row → numbers of points since 1970, and the points.
    points: dict[str, list[tuple[int, float, float]]] = {}
    #: The point that is made now: row → measurements, and their sums.
    number: int = 0
    sums: dict[str, tuple[int, float, float]] = {}

    def add(self, measured: Mapping[str, Point], now: float) -> bool:
        """Add measurements; return whether a point was completed."""
        number = int(now // self.step_seconds)
        completed = bool(self.sums) and number != self.number
        if completed:
            self._complete(number)
        self.number = number
        for row, (held, wanted) in measured.items():
            count, all_held, all_wanted = self.sums.get(row, (0, 0.0, 0.0))
            self.sums[row] = (count + 1, all_held + held, all_wanted + wanted)
        return completed

    def _complete(self, number: int) -> None:
        for row, (count, held, wanted) in self.sums.items():
            point = (self.number, round(held / count, 3), round(wanted / count, 3))
            self.points.setdefault(row, []).append(point)
        self.sums = {}
        oldest = number - TREND_POINTS
        for row in list(self.points):
            self.points[row] = [each for each in self.points[row] if each[0] >= oldest]
            if not self.points[row]:
                del self.points[row]

    def rows(self, now: float) -> dict[str, list[Point | None]]:
        """Return the points of each row up to the last completed one, oldest first."""
        first = int(now // self.step_seconds) - TREND_POINTS
        found: dict[str, list[Point | None]] = {}
        for row, points in self.points.items():
            line: list[Point | None] = [None] * TREND_POINTS
            for number, held, wanted in points:
                if 0 <= number - first < TREND_POINTS:
                    line[number - first] = (held, wanted)
            found[row] = line
        return found


class Trends:
    """Trends of all ranges, as the process that judges keeps them."""

    def __init__(self, long: Iterable[LongTrend] = ()) -> None:
        self._points: dict[str, deque[Point]] = {}
        self._next = 0.0
        known = {each.step_seconds: each for each in long}
        steps = [seconds / TREND_POINTS for seconds, _ in TREND_RANGES[1:]]
        self.long = [known.get(step) or LongTrend(step, {}, 0, {}) for step in steps]

    def restore(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Continue the trends of rows that were published before a restart."""
        for row in rows:
            points = (tuple(point) for point in row.get("trend", ()))
            self._points[row["id"]] = deque(points, maxlen=TREND_POINTS)

    def add(self, rows: Iterable[ResourceRow], now: float) -> bool:
        """Add a point where one is due, and put the last half hour into the rows.

        Return whether a longer range has another point.
        """
        due = now >= self._next
        measured: dict[str, Point] = {}
        for row in rows:
            points = self._points.setdefault(row.id, deque(maxlen=TREND_POINTS))
            if due:
                most = row.capacity + row.lost or max(1.0, row.wanted)
                measured[row.id] = (round(row.held / most, 3), round(row.wanted / most, 3))
                points.append(measured[row.id])
            row.trend = list(points)
        if not due:
            return False
        self._next = now + TREND_SECONDS
        completed = [each.add(measured, now) for each in self.long]
        return any(completed)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[LongTrend]).decode


class TrendStore:
    """Trends of the longer ranges in Redis. All methods raise redis.RedisError."""

    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self._client = client
        self._key = keys.resource_trends

    def load(self) -> list[LongTrend]:
        """Return what is stored; nothing before the first point, and of another version."""
        stored = self._client.get(self._key)
        try:
            return _decode(stored) if isinstance(stored, bytes) else []
        except msgspec.DecodeError:
            return []

    def save(self, trends: list[LongTrend]) -> None:
        """Replace what is stored."""
        self._client.set(self._key, _encode(trends))
