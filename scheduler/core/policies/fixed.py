"""Policies that decide about each action alone: ``minimum`` and ``fixed(k)``."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from domain.elasticity import Elasticity
from domain.resources import MILLI, UnitSet
from scheduler.core.policies.protocol import Policy
from scheduler.core.policies.registry import register


@register("minimum")
@dataclass(frozen=True)
class Minimum(Policy):
    """Grants each action its smallest count at once. O(1) per action."""

    name: str = "minimum"


@register("fixed(k)")
@dataclass(frozen=True)
class Fixed(Policy):
    """Grants each action the same degree of parallelism: its largest count up to ``parallelism``.

    An action without a count that small gets its smallest. An action waits until that count is
    free, so the scan itself admits at it. O(log |S|) per action.
    """

    parallelism: int

    @property
    def name(self) -> str:
        """Return the name in the configuration of pools."""
        return f"fixed({self.parallelism})"

    def admit_count(self, units: UnitSet, elasticity: Elasticity | None = None) -> int:
        """Return the largest count up to ``parallelism`` units."""
        return units[max(0, bisect_right(units, self.parallelism * MILLI) - 1)]
