"""Windows of quotas: grants of a sliding window, or of a calendar day. Pure; times are journal time.

Grants of a sliding window are kept in groups that span a `GRAINS`-th of it. A group leaves the
window with its last grant, so a window counts a grant too long by that much at most, never too
short, and stores a bounded number of groups.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime, time, timedelta, tzinfo
from functools import lru_cache
from itertools import islice
from typing import Final, Protocol
from zoneinfo import ZoneInfo

GRAINS: Final = 1000

#: Grants that leave a window together: time of the first, time of the last, amount.
Group = tuple[float, float, int]


class QuotaWindow(Protocol):
    """Grants of a period that ends now."""

    def used(self, now: float) -> int:
        """Return the amount that counts at ``now``."""

    def add(self, now: float, amount: int) -> None:
        """Count a grant made at ``now``."""

    def falls_to(self, most: int, now: float, pending: int = 0) -> float:
        """Return the time at which at most ``most`` counts, if only ``pending`` is still granted."""

    def groups(self) -> list[Group]:
        """Return the stored groups, oldest first."""


class SlidingWindow:
    """Grants of the last so many seconds: one made at t counts before t + seconds."""

    __slots__ = ("_groups", "_seconds", "_used")

    def __init__(self, seconds: float, remembered: Iterable[Group] = ()) -> None:
        self._seconds = seconds
        self._groups = deque(remembered)
        self._used = sum(amount for _, _, amount in self._groups)

    def used(self, now: float) -> int:
        """Return the amount that counts at ``now``."""
        groups, seconds = self._groups, self._seconds
        while groups and groups[0][1] + seconds <= now:
            self._used -= groups.popleft()[2]
        return self._used

    def add(self, now: float, amount: int) -> None:
        """Count a grant made at ``now``."""
        self._used = self.used(now) + amount
        if self._groups:
            first, _, before = self._groups[-1]
            if now - first < self._seconds / GRAINS:
                self._groups[-1] = (first, now, before + amount)
                return
        self._groups.append((now, now, amount))

    def falls_to(self, most: int, now: float, pending: int = 0) -> float:
        """Return the time at which at most ``most`` counts."""
        used, at = self.used(now) + pending, now
        for _, last, amount in self._groups:
            if used <= most:
                return at
            used -= amount
            at = last + self._seconds
        return now + self._seconds if used > most and pending else at

    def groups(self) -> list[Group]:
        """Return the stored groups, oldest first."""
        return list(islice(self._groups, None))


class CalendarDay:
    """Grants since the last midnight of a time zone."""

    __slots__ = ("_ends_at", "_last", "_used", "_zone")

    def __init__(self, zone: str, remembered: Iterable[Group] = ()) -> None:
        self._zone = _zone(zone)
        self._used, self._ends_at, self._last = 0, 0.0, 0.0
        for _, last, amount in remembered:
            self.add(last, amount)

    def used(self, now: float) -> int:
        """Return the amount that counts at ``now``."""
        if now >= self._ends_at:
            self._used, self._ends_at = 0, _midnight_after(now, self._zone)
        return self._used

    def add(self, now: float, amount: int) -> None:
        """Count a grant made at ``now``."""
        self.used(now)
        self._used += amount
        self._last = now

    def falls_to(self, most: int, now: float, pending: int = 0) -> float:
        """Return the time at which at most ``most`` counts: now, or midnight."""
        return now if self.used(now) + pending <= most else self._ends_at

    def groups(self) -> list[Group]:
        """Return the day's grants as one group."""
        return [(self._last, self._last, self._used)] if self._used else []


def _midnight_after(now: float, zone: tzinfo) -> float:
    """Return the start of the day after that of ``now``, also after a day of 23 or 25 hours."""
    day = datetime.fromtimestamp(now, zone).date() + timedelta(days=1)
    return max(datetime.combine(day, time.min, zone).timestamp(), now + 1.0)


@lru_cache(maxsize=64)
def _zone(name: str) -> tzinfo:
    """Return a time zone; the API refuses unknown names."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return UTC
