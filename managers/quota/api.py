"""The ledger of an API: how much may be open at once, and how much may be granted per period.

Theory of operation. A holder's amount counts against the capacity until it is released, as in
`CounterLedger`, and against every quota: from `allocate` on as *unspent*, and from `spend` on, when
it was handed out for good, as a grant of that moment, for as long as the quota's period lasts. What
is released unspent leaves no trace. Nothing that happens to a quota touches who holds something: a
quota lowered below what is used shows less than nothing left, and grants wait. On top of both
stands the *pace* that the API's own answers set (`pace`).

Time is data: `advance` says what time it is, before each cycle. All state follows from the calls
and their times, and `remember` writes it down, so a restored ledger goes on as the original would.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from domain.allocation import Allocation
from domain.apis import Feedback
from domain.errors import CapacityError
from domain.ids import ResourceId
from domain.inventory import ResourceInventory
from domain.limits import Limits, Quota, QuotaUse, Turn
from managers.quota.ledger import CounterLedger
from managers.quota.pace import Pace, PaceState
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
    pace: PaceState = msgspec.field(default_factory=PaceState)


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
        self._pace = Pace(self._limits)
        #: What turned bad and was not asked for yet; nothing, between two cycles.
        self._turns: list[Turn] = []

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
        if not amounts:
            return True
        if not super().fits(amounts) or not self._pace.admits(self.now, len(amounts)):
            return False
        total = sum(amounts)
        # Who is larger than what was learned goes alone, or it would never go.
        alone = not self._held and len(amounts) == 1
        if self._held + total > self._pace.ceiling(self._capacity) and not alone:
            return False
        return all(total <= self._left(meter) for meter in self._meters)

    def _left(self, meter: Meter) -> int:
        return meter.quota.amount - meter.window.used(self.now) - self._pending()

    def _pending(self) -> int:
        return sum(self._unspent.values()) if self._unspent else 0

    def allocate(self, holder: str, amount: int) -> Allocation:
        """Hand out ``amount``; raise CapacityError when it does not fit or ``holder`` has some."""
        if holder not in self._holders and not self.fits((amount,)):
            raise CapacityError(f"{self.resource} has no room for {amount} now")
        allocation = super().allocate(holder, amount)
        self._pace.took(holder, self.now)
        if self._meters:
            self._unspent[holder] = amount
        return allocation

    def spend(self, holder: str) -> None:
        """What ``holder`` has was handed out for good: quotas count it from now on."""
        amount = self._unspent.pop(holder, 0)
        if amount:
            for meter in self._meters:
                meter.window.add(self.now, amount)
                left = meter.quota.amount - meter.window.used(self.now)
                if left <= 0 < left + amount:
                    self._turns.append(Turn(self._use(meter, self.now)))

    def presume(self, used: Sequence[int]) -> None:
        """Count so much against each quota, in their order, as if it was granted now.

        For books that begin later than what they are about.
        """
        for meter, amount in zip(self._meters, used, strict=False):
            if amount > 0:
                meter.window.add(self.now, amount)

    def release(self, holder: str) -> Allocation | None:
        """Take back what ``holder`` has; what was spent stays spent."""
        self._unspent.pop(holder, None)
        self._pace.left(holder)
        return super().release(holder)

    def ready_at(self, amount: int) -> float | None:
        """Return when time alone lets ``amount`` fit; None when it is not time that it lacks."""
        if amount > self._capacity - self._held:
            return None
        late = self._pace.ready_at(self.now)
        for quota, window in self._meters:
            if amount > quota.amount:
                return None
            most = quota.amount - amount
            late = max(late, window.falls_to(most, self.now, self._pending()))
        return late if late > self.now else None

    def heed(self, feedback: Feedback, granted_at: float, now: float) -> None:
        """Let the pace follow what an attempt, granted at ``granted_at``, says of the API."""
        opened = self._pace.state.opened
        self._pace.heed(feedback, granted_at, now, self._held, self._capacity)
        if self._pace.state.opened and not opened:
            self._turns.append(Turn(detail=self._pace.hindrance(now)))

    def turns(self) -> list[Turn]:
        """Return what turned bad since this was last asked: a circuit that goes on failing did not."""
        if not self._turns:
            return self._turns
        turned, self._turns = self._turns, []
        return turned

    def take_retry(self, attempts: int) -> str:
        """Allow one more attempt after so many; else say why there is none."""
        most = self._limits.retries.attempts
        if attempts >= most:
            return f"{attempts} of {most} attempts were made"
        return "" if self._pace.take_retry() else f"the retry budget of {self.resource} is used up"

    def hindrance(self, now: float) -> str:
        """Say in words what the API's own answers put in the way now; empty when nothing is."""
        return self._pace.hindrance(now)

    @property
    def ceiling(self) -> int:
        """How much may be open at once, as far as was learned; milli-units."""
        return self._pace.ceiling(self._capacity)

    def uses(self, now: float) -> list[QuotaUse]:
        """Return how each quota stands at ``now``."""
        return [self._use(meter, now) for meter in self._meters]

    def _use(self, meter: Meter, now: float) -> QuotaUse:
        quota, window = meter
        used = window.used(now)
        return QuotaUse(
            quota, used, quota.amount - used, window.falls_to(used - 1, now) if used else None
        )

    def resize_capacity(self, inventory: ResourceInventory) -> None:
        """Follow a changed declaration; holders keep what they have, and grants stay counted.

        A quota that is new, or has another period now, begins with what the longest of the former
        ones remembers.
        """
        super().resize_capacity(inventory)
        if inventory.limits == self._limits:
            return
        self._limits = inventory.limits
        self._pace.declare(self._limits)
        before = {_period(meter.quota): meter.window.groups() for meter in self._meters}
        spent = {_period(use.quota) for use in self.uses(self.now) if use.left <= 0}
        longest = before[max(before, key=_reach)] if before else []
        self._meters = [
            Meter(quota, _window(quota, before.get(_period(quota), longest)))
            for quota in self._limits.quotas
        ]
        self._turns += [
            Turn(use)
            for use in self.uses(self.now)
            if use.left <= 0 and _period(use.quota) not in spent
        ]

    def remember(self) -> bytes:
        """Return what a restored ledger needs besides its holders."""
        granted = [meter.window.groups() for meter in self._meters]
        return _encode(Memory(self.now, self._limits, granted, self._unspent, self._pace.state))

    def recall(self, memory: bytes) -> None:
        """Go on where the ledger was that remembered; its holders have been adopted."""
        known = _decode(memory)
        self.now, self._limits = known.now, known.limits
        self._unspent = known.unspent
        self._pace = Pace(self._limits, known.pace)
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
