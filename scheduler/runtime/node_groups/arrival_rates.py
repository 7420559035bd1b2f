"""ArrivalRates: how many actions of each kind arrive, from those that end: over a while, as many arrive as end (Little's law). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import exp, floor, log2
from typing import Final

from contract.pool_demands import DemandRow
from scheduler.runtime.node_groups.pool_load import ArrivingActions

#: Rates are means over about so long.
RATE_SECONDS: Final = 120.0
_LEAST_RATE: Final = 1e-6


@dataclass
class _Rate:
    needs: Mapping[str, int]
    bound: bool
    seconds: float
    per_second: float = 0.0


@dataclass
class ArrivalRates:
    """Of one pool."""

    #: By kind of row.
    _rates: dict[tuple[object, ...], _Rate] = field(default_factory=dict)
    _weight: float = 0.0
    _looked_at: float | None = None

    def learn(self, rows: Iterable[DemandRow], now: float) -> None:
        """Follow what runs."""
        passed = RATE_SECONDS if self._looked_at is None else now - self._looked_at
        self._looked_at = now
        share = 1.0 - exp(-passed / RATE_SECONDS)
        self._weight += (1.0 - self._weight) * share
        for each in self._rates.values():
            each.per_second *= 1.0 - share
        for row in rows:
            if row.running:
                key = (*sorted(row.needs.items()), row.bound, floor(log2(row.seconds)))
                rate = self._rates.setdefault(key, _Rate(row.needs, row.bound, row.seconds))
                rate.seconds = row.seconds
                rate.per_second += share * row.ending_per_second
        for key in [key for key, each in self._rates.items() if each.per_second < _LEAST_RATE]:
            del self._rates[key]

    def arrivals(self) -> list[ArrivingActions]:
        """Return what arrives."""
        return [
            ArrivingActions(each.needs, each.bound, each.seconds, each.per_second / self._weight)
            for each in self._rates.values()
            if each.per_second / self._weight > _LEAST_RATE
        ]
