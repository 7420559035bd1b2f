"""Policies that look at one action at a time: ``minimum`` and ``fixed(k)``."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from domain.elasticity import Elasticity
from domain.resources import MILLI, UnitSet


@dataclass(frozen=True, slots=True)
class Minimum:
    """Everybody gets the smallest count, at once. O(1) per action."""

    name: str = "minimum"
    shares: bool = False
    arrange: None = None

    def admits_at(self, units: UnitSet, elasticity: Elasticity | None = None) -> int:
        """Return the smallest count."""
        return units[0]


@dataclass(frozen=True, slots=True)
class Fixed:
    """Everybody gets the same degree of parallelism: the largest count up to ``parallelism`` units.

    Who has no count that small gets the smallest. An action waits until that count is free, so
    the scan itself admits at it. O(log |S|) per action.
    """

    parallelism: int
    shares: bool = False
    arrange: None = None

    @property
    def name(self) -> str:
        """Return the name as pools are configured with it."""
        return f"fixed({self.parallelism})"

    def admits_at(self, units: UnitSet, elasticity: Elasticity | None = None) -> int:
        """Return the largest count up to ``parallelism`` units."""
        return units[max(0, bisect_right(units, self.parallelism * MILLI) - 1)]
