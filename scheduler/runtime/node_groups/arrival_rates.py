"""ArrivalRates: how many actions of each kind arrive, from those that end: over a while, as many arrive as end (Little's law). Pure.

A rate is a mean over about `RATE_SECONDS`, and over as long as `_ENDS` ends take where that is longer: one build that runs does not say that builds
arrive all the time. What was not seen before a kind's first action counts as none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import exp, floor, log2
from typing import Final

from contract.pool_demands import DemandRow
from scheduler.runtime.node_groups.pool_load import ArrivingActions

#: Rates are means over about so long, at least and at most.
RATE_SECONDS: Final = 120.0
_LONGEST_SECONDS: Final = 1800.0
_ENDS: Final = 8.0
_LEAST_RATE: Final = 1e-6


@dataclass
class _Rate:
    needs: Mapping[str, int]
    bound: bool
    seconds: float
    sum: float = 0.0
    #: Of the looks that are in the sum: 1 once they are many.
    weight: float = 0.0

    @property
    def per_second(self) -> float:
        return self.sum / self.weight if self.weight else 0.0

    def follow(self, ending_per_second: float, passed: float) -> None:
        """Follow what was seen at a look."""
        rate = max(self.per_second, ending_per_second)
        memory = min(_LONGEST_SECONDS, max(RATE_SECONDS, _ENDS / rate)) if rate else RATE_SECONDS
        share = 1.0 - exp(-passed / memory)
        self.sum += share * (ending_per_second - self.sum)
        self.weight += share * (1.0 - self.weight)


@dataclass
class ArrivalRates:
    """Of one pool."""

    #: By kind of row.
    _rates: dict[tuple[object, ...], _Rate] = field(default_factory=dict)
    _began_at: float | None = None
    _looked_at: float = 0.0

    def learn(self, rows: Iterable[DemandRow], now: float) -> None:
        """Follow what runs."""
        if self._began_at is None:
            self._began_at = now - RATE_SECONDS
            self._looked_at = self._began_at
        passed, self._looked_at = now - self._looked_at, now
        before = now - passed - self._began_at
        ending: dict[tuple[object, ...], float] = {}
        for row in rows:
            if not row.running:
                continue
            key = (*sorted(row.needs.items()), row.bound, floor(log2(row.seconds)))
            ending[key] = ending.get(key, 0.0) + row.ending_per_second
            if key not in self._rates:
                found = self._rates[key] = _Rate(row.needs, row.bound, row.seconds)
                memory = max(RATE_SECONDS, _ENDS / max(row.ending_per_second, _LEAST_RATE))
                found.weight = 1.0 - exp(-before / min(_LONGEST_SECONDS, memory))
            self._rates[key].seconds = row.seconds
        for key, rate in list(self._rates.items()):
            rate.follow(ending.get(key, 0.0), passed)
            if rate.sum < _LEAST_RATE:
                del self._rates[key]

    def arrivals(self) -> list[ArrivingActions]:
        """Return what arrives."""
        return [
            ArrivingActions(each.needs, each.bound, each.seconds, each.per_second)
            for each in self._rates.values()
            if each.per_second > _LEAST_RATE
        ]
