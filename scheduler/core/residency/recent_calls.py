"""Recent calls of a pool, as `steady_counts` keeps them between cycles and in the snapshot."""

from __future__ import annotations

import msgspec

from domain.elasticity import Elasticity
from domain.resources import UnitSet


class RecentCall(msgspec.Struct, frozen=True, array_like=True):
    """A call that was submitted."""

    at: float
    service: str
    #: Seconds on one GPU.
    base_seconds: float
    counts: UnitSet
    elasticity: Elasticity

    def count(self, steady: int) -> int:
        """Return the milli-units that the call gets under a ``steady`` count."""
        return max((each for each in self.counts if each <= steady), default=self.counts[0])


class SteadyCount(msgspec.Struct):
    """The steady count of one pool, in milli-units, and the calls that it was chosen by."""

    count: int
    calls: int = 0
    recent: list[RecentCall] = []
