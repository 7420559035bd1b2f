"""The ledger of an API: concurrent calls, and grants per period.

Theory of operation. A holder's amount counts against the capacity until it is released, as in
`CounterLedger`, and against every quota: from `allocate` on as *unspent*, and from `spend` on, when
the grant is final, as a grant of that moment, for the period of the quota. An amount that is released
unspent leaves no trace. A change of a quota never affects holders: a quota lowered below its use has
a negative rest, and grants wait. The *pace* that the API's own answers set applies as well (`pace`).

Time is data: `advance` sets it before each cycle. All state follows from the calls and their times,
and `remember` stores it, so a restored ledger continues as the original would.
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
from domain.limits import Degradation, Limits, Quota, QuotaUse
from managers.quota.ledger.counter import CounterLedger
from managers.quota.ledger.pace import Pace, PaceState
from managers.quota.ledger.windows import CalendarDay, Group, QuotaWindow, SlidingWindow


class Meter(NamedTuple):
    """A quota and its recent grants."""

    quota: Quota
    window: QuotaWindow


class ApiLedgerSnapshot(msgspec.Struct, frozen=True):
    """State of a ledger that does not follow from its holders."""

    now: float
    limits: Limits
    #: One entry for each quota, in their order.
    granted: list[list[Group]]
    unspent: dict[str, int]
    pace: PaceState = msgspec.field(default_factory=PaceState)


_encode = msgspec.msgpack.Encoder(order="deterministic").encode
_decode = msgspec.msgpack.Decoder(ApiLedgerSnapshot).decode


class ApiLedger(CounterLedger):
    """Counts open calls and recent grants."""

    def __init__(self, resource: ResourceId, inventory: ResourceInventory) -> None:
        super().__init__(resource, inventory)
        self.now = 0.0
        self._limits = inventory.limits
        self._meters = [Meter(quota, _window(quota)) for quota in self._limits.quotas]
        #: Amounts of holders whose grant is not final yet.
        self._unspent: dict[str, int] = {}
        self._pace = Pace(self._limits)
        #: Quotas that ran out and circuits that opened since the last `degradations`; empty between cycles.
        self._degradations: list[Degradation] = []

    def advance(self, now: float) -> None:
        """Set the time (journal time, seconds); it never runs backward."""
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
        # An amount above the learned limit is granted alone, or it would never be.
        alone = not self._held and len(amounts) == 1
        if self._held + total > self._pace.ceiling(self._capacity) and not alone:
            return False
        return all(total <= self._left(meter) for meter in self._meters)

    def _left(self, meter: Meter) -> int:
        return meter.quota.amount - meter.window.used(self.now) - self._pending()

    def _pending(self) -> int:
        return sum(self._unspent.values()) if self._unspent else 0

    def allocate(self, holder: str, amount: int) -> Allocation:
        """Allocate ``amount``. Raises CapacityError when it does not fit or ``holder`` has some."""
        if holder not in self._holders and not self.fits((amount,)):
            raise CapacityError(f"{self.resource} has no room for {amount} now")
        allocation = super().allocate(holder, amount)
        self._pace.took(holder, self.now)
        if self._meters:
            self._unspent[holder] = amount
        return allocation

    def spend(self, holder: str) -> None:
        """Make the grant of ``holder`` final: quotas count it from now on."""
        amount = self._unspent.pop(holder, 0)
        if amount:
            for meter in self._meters:
                meter.window.add(self.now, amount)
                left = meter.quota.amount - meter.window.used(self.now)
                if left <= 0 < left + amount:
                    self._degradations.append(Degradation(self._use(meter, self.now)))

    def presume(self, used: Sequence[int]) -> None:
        """Count these amounts against the quotas, in their order, as if granted now.

        For a ledger that starts after the grants it should count.
        """
        for meter, amount in zip(self._meters, used, strict=False):
            if amount > 0:
                meter.window.add(self.now, amount)

    def release(self, holder: str) -> Allocation | None:
        """Release and return the allocation of ``holder``; what was spent stays counted."""
        self._unspent.pop(holder, None)
        self._pace.left(holder)
        return super().release(holder)

    def ready_at(self, amount: int) -> float | None:
        """Return the time at which ``amount`` fits without a release; None when there is none."""
        if amount > self._capacity - self._held:
            return None
        late = self._pace.ready_at(self.now)
        for quota, window in self._meters:
            if amount > quota.amount:
                return None
            most = quota.amount - amount
            late = max(late, window.falls_to(most, self.now, self._pending()))
        return late if late > self.now else None

    def apply_feedback(self, feedback: Feedback, granted_at: float, now: float) -> None:
        """Adapt the pace to the feedback of an attempt that was granted at ``granted_at``."""
        opened = self._pace.state.opened
        self._pace.apply_feedback(feedback, granted_at, now, self._held, self._capacity)
        if self._pace.state.opened and not opened:
            self._degradations.append(Degradation(detail=self._pace.hindrance(now)))

    def degradations(self) -> list[Degradation]:
        """Return the quotas that ran out and circuits that opened since the last call."""
        if not self._degradations:
            return self._degradations
        found, self._degradations = self._degradations, []
        return found

    def take_retry(self, attempts: int) -> str:
        """Take one retry after ``attempts``; return the reason when there is none, else nothing."""
        most = self._limits.retries.attempts
        if attempts >= most:
            return f"{attempts} of {most} attempts were made"
        return "" if self._pace.take_retry() else f"the retry budget of {self.resource} is used up"

    def hindrance(self, now: float) -> str:
        """Return why the API's own answers forbid a call now; empty when they allow it."""
        return self._pace.hindrance(now)

    @property
    def ceiling(self) -> int:
        """Learned limit of concurrent calls, in milli-units; the capacity at most."""
        return self._pace.ceiling(self._capacity)

    def uses(self, now: float) -> list[QuotaUse]:
        """Return the use of each quota at ``now``."""
        return [self._use(meter, now) for meter in self._meters]

    def _use(self, meter: Meter, now: float) -> QuotaUse:
        quota, window = meter
        used = window.used(now)
        return QuotaUse(
            quota, used, quota.amount - used, window.falls_to(used - 1, now) if used else None
        )

    def resize_capacity(self, inventory: ResourceInventory) -> None:
        """Follow a changed declaration; holders keep what they have, and grants stay counted.

        A quota that is new, or whose period changed, starts with the grants that the former quota with
        the longest period has recorded.
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
        self._degradations += [
            Degradation(use)
            for use in self.uses(self.now)
            if use.left <= 0 and _period(use.quota) not in spent
        ]

    def remember(self) -> bytes:
        """Return the state that does not follow from the holders."""
        granted = [meter.window.groups() for meter in self._meters]
        return _encode(
            ApiLedgerSnapshot(self.now, self._limits, granted, self._unspent, self._pace.state)
        )

    def recall(self, memory: bytes) -> None:
        """Restore the state of `remember`; holders were adopted before."""
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
    """Return the age of the oldest grant that a window of this period counts, in seconds."""
    return period[0] or 86_400.0


def _window(quota: Quota, remembered: Sequence[Group] = ()) -> QuotaWindow:
    if quota.window_seconds:
        return SlidingWindow(quota.counted_seconds, remembered)
    return CalendarDay(quota.zone, remembered)
