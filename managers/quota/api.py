"""The ledger of an API: how much may be open at once, and how much may be granted per period.

Theory of operation. A holder's amount counts against the capacity until it is released, as in
`CounterLedger`, and against every quota: from `allocate` on as *unspent*, and from `spend` on, when
it was handed out for good, as a grant of that moment, for as long as the quota's period lasts. What
is released unspent leaves no trace. Nothing that happens to a quota touches who holds something: a
quota lowered below what is used shows less than nothing left, and grants wait.

Time is data: `advance` says what time it is, before each cycle. All state follows from the calls
and their times, and `remember` writes it down, so a restored ledger goes on as the original would.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from domain.allocation import Allocation
from domain.errors import CapacityError
from domain.ids import ResourceId
from domain.inventory import ResourceInventory
from domain.limits import Limits, Quota, QuotaUse
from managers.quota.ledger import CounterLedger
from managers.quota.windows import CalendarDay, Group, SlidingWindow, Window


class Meter(NamedTuple):
    """A quota and what was granted of it."""

    quota: Quota
    window: Window


class Memory(msgspec.Struct, frozen=True):
    """What a ledger cannot derive from its holders."""

    now: float
    limits: Limits
    #: One entry for each quota, in their order.
    granted: list[list[Group]]
    unspent: dict[str, int]


_encode = msgspec.msgpack.Encoder(order="deterministic").encode
_decode = msgspec.msgpack.Decoder(Memory).decode


class ApiLedger(CounterLedger):
    """Counts what is open, and what was granted lately."""

    def __init__(self, resource: ResourceId, inventory: ResourceInventory) -> None:
        super().__init__(resource, inventory)
        self.now = 0.0
        self._limits = inventory.limits
        self._meters = [Meter(quota, _window(quota)) for quota in self._limits.quotas]
        #: What holders have that was not handed out yet.
        self._unspent: dict[str, int] = {}

    def advance(self, now: float) -> None:
        """Let time pass; it never runs backward."""
        self.now = now

    def feasible(self, amount: int) -> bool:
        """Say whether ``amount`` would fit if nothing were held and nothing had been granted."""
        return super().feasible(amount) and all(
            amount <= meter.quota.amount for meter in self._meters
        )

    def fits(self, amounts: Sequence[int]) -> bool:
        """Say whether all ``amounts`` could be allocated now, at once."""
        if not super().fits(amounts):
            return False
        return not amounts or self._in_time(sum(amounts))

    def _in_time(self, amount: int) -> bool:
        """Say whether no quota is in the way of ``amount``."""
        return all(amount <= self._left(meter) for meter in self._meters)

    def _left(self, meter: Meter) -> int:
        return meter.quota.amount - meter.window.used(self.now) - self._pending()

    def _pending(self) -> int:
        return sum(self._unspent.values()) if self._unspent else 0

    def allocate(self, holder: str, amount: int) -> Allocation:
        """Hand out ``amount``; raise CapacityError when it does not fit or ``holder`` has some."""
        if not self._in_time(amount):
            raise CapacityError(f"{self.resource}: its quotas leave no room for {amount} now")
        allocation = super().allocate(holder, amount)
        if self._meters:
            self._unspent[holder] = amount
        return allocation

    def spend(self, holder: str) -> None:
        """What ``holder`` has was handed out for good: quotas count it from now on."""
        amount = self._unspent.pop(holder, 0)
        if amount:
            for meter in self._meters:
                meter.window.add(self.now, amount)

    def release(self, holder: str) -> Allocation | None:
        """Take back what ``holder`` has; what was spent stays spent."""
        self._unspent.pop(holder, None)
        return super().release(holder)

    def ready_at(self, amount: int) -> float | None:
        """Return when time alone lets ``amount`` fit; None when it is not time that it lacks."""
        late = self.now
        for quota, window in self._meters:
            if amount > quota.amount:
                return None
            most = quota.amount - amount
            late = max(late, window.falls_to(most, self.now, self._pending()))
        return late if late > self.now else None

    def uses(self, now: float) -> list[QuotaUse]:
        """Return how each quota stands at ``now``."""
        return [
            QuotaUse(
                quota,
                used := window.used(now),
                quota.amount - used,
                window.falls_to(used - 1, now) if used else None,
            )
            for quota, window in self._meters
        ]

    def resize_capacity(self, inventory: ResourceInventory) -> None:
        """Follow a changed declaration; holders keep what they have, and grants stay counted.

        A quota that is new, or has another period now, begins with what the longest of the former
        ones remembers.
        """
        super().resize_capacity(inventory)
        if inventory.limits == self._limits:
            return
        self._limits = inventory.limits
        before = {_period(meter.quota): meter.window.groups() for meter in self._meters}
        longest = before[max(before, key=_reach)] if before else []
        self._meters = [
            Meter(quota, _window(quota, before.get(_period(quota), longest)))
            for quota in self._limits.quotas
        ]

    def remember(self) -> bytes:
        """Return what a restored ledger needs besides its holders."""
        granted = [meter.window.groups() for meter in self._meters]
        return _encode(Memory(self.now, self._limits, granted, self._unspent))

    def recall(self, memory: bytes) -> None:
        """Go on where the ledger was that remembered; its holders have been adopted."""
        known = _decode(memory)
        self.now, self._limits = known.now, known.limits
        self._unspent = known.unspent
        self._meters = [
            Meter(quota, _window(quota, groups))
            for quota, groups in zip(self._limits.quotas, known.granted, strict=True)
        ]


Period = tuple[float, str]


def _period(quota: Quota) -> Period:
    return quota.counted_seconds, quota.zone


def _reach(period: Period) -> float:
    """Return how far back a window of this period remembers, at most."""
    return period[0] or 86_400.0


def _window(quota: Quota, remembered: Sequence[Group] = ()) -> Window:
    if quota.window_seconds:
        return SlidingWindow(quota.counted_seconds, remembered)
    return CalendarDay(quota.zone, remembered)
