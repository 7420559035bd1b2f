"""Durations of work on given units: the one duration function of the simulator.

``duration(m) = T_ori / (E(m) · m)`` (ARL-Tangram §4.1), so ``rate(m) = E(m) · m`` seconds of T_ori
are done per second. A running action may change its units at any moment: what remains is counted
in seconds of T_ori, and goes on at the new rate. Work without elasticity takes T_ori whatever it
is given.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from domain.action import Action
from domain.allocation import Allocation
from domain.elasticity import Elasticity
from domain.resources import MILLI


class ActionWork(msgspec.Struct, frozen=True, gc=False):
    """The truth about one action. What its trainer declares of it may differ."""

    #: T_ori: seconds with one unit of the key resource.
    base_seconds: float
    #: None: more units do not help.
    elasticity: Elasticity | None = None
    #: Resource whose units count.
    key: str = "cpu"
    #: Cores that it keeps busy on average, where the processors of a machine are simulated (`simulator.machine`).
    busy_cores: float = 0.0

    @property
    def cpu_seconds(self) -> float:
        """CPU that it takes with one unit."""
        return self.base_seconds * self.busy_cores

    def rate(self, milli: int) -> float:
        """Return how many seconds of T_ori are done per second on ``milli`` milli-units."""
        if self.elasticity is None:
            return 1.0
        return self.elasticity.efficiency(milli) * milli / MILLI

    def seconds(self, milli: int) -> float:
        """Return how long all of it takes on ``milli`` milli-units."""
        return self.base_seconds / self.rate(milli)


def declared_work(action: Action) -> ActionWork | None:
    """Return what ``action`` declares of itself; None when it declares no duration."""
    if action.duration_seconds is None:
        return None
    return ActionWork(action.duration_seconds, action.elasticity, action.key or "cpu")


def granted_milli(allocations: Iterable[Allocation], key: str) -> int:
    """Return the milli-units held of ``key``; one unit when it is not among them."""
    for allocation in allocations:
        if allocation.resource == key or allocation.resource.partition(":")[0] == key:
            return allocation.amount
    return MILLI


class WorkProgress:
    """One piece of work on its way, at a rate that may change."""

    __slots__ = ("_rate", "_remaining", "_since", "_work", "ends_at")

    def __init__(
        self, work: ActionWork, allocations: Iterable[Allocation], starts_at: float
    ) -> None:
        self._work = work
        self._remaining = work.base_seconds
        self._rate = 1.0
        if work.elasticity is not None:
            self._rate = work.rate(granted_milli(allocations, work.key))
        self._since = starts_at
        #: When it is done, if nothing changes.
        self.ends_at = starts_at + self._remaining / self._rate

    def remaining_seconds(self, now: float) -> float:
        """Return what is left at ``now``, in seconds of T_ori."""
        done = max(0.0, now - self._since) * self._rate
        return max(0.0, self._remaining - done)

    def change(self, milli: int, now: float) -> None:
        """Go on with ``milli`` milli-units from ``now`` on."""
        self._remaining = self.remaining_seconds(now)
        self._since = max(self._since, now)
        self._rate = self._work.rate(milli)
        self.ends_at = self._since + self._remaining / self._rate
