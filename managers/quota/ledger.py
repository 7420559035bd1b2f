"""The ledger of a plain counted amount.

Units have no identity, so the whole state is one sum: what fits is what is not held. Memory is
counted in bytes, everything else in milli-units; this ledger does not care which.
"""

from __future__ import annotations

from collections.abc import Sequence

from domain.allocation import Allocation
from domain.errors import CapacityError
from domain.ids import ResourceId
from domain.inventory import ResourceInventory


class CounterLedger:
    """Counts an amount whose units are all alike."""

    def __init__(self, resource: ResourceId, inventory: ResourceInventory) -> None:
        self.resource = resource
        self._capacity = inventory.capacity
        self._held = 0
        self._holders: dict[str, Allocation] = {}

    @property
    def capacity(self) -> int:
        """Amount there is."""
        return self._capacity

    @property
    def free(self) -> int:
        """Amount not held; negative after the capacity shrank below what is held."""
        return self._capacity - self._held

    def feasible(self, amount: int) -> bool:
        """Say whether ``amount`` would fit if nothing were held."""
        return 0 <= amount <= self._capacity

    def fits(self, amounts: Sequence[int]) -> bool:
        """Say whether all ``amounts`` could be allocated now, at once."""
        if not amounts:
            return True
        return min(amounts) >= 0 and sum(amounts) <= self._capacity - self._held

    def allocate(self, holder: str, amount: int) -> Allocation:
        """Hand out ``amount``; raise CapacityError when it does not fit or ``holder`` has some."""
        if holder in self._holders:
            raise CapacityError(f"{holder} already holds {self.resource}")
        if amount < 0 or amount > self._capacity - self._held:
            raise CapacityError(f"{self.resource} has {self.free} free, {amount} were asked")
        allocation = Allocation(self.resource, amount)
        self._holders[holder] = allocation
        self._held += amount
        return allocation

    def adopt(self, holder: str, allocation: Allocation) -> None:
        """Enter an allocation made earlier, unasked; it replaces what ``holder`` had."""
        self.release(holder)
        self._holders[holder] = allocation
        self._held += allocation.amount

    def release(self, holder: str) -> Allocation | None:
        """Take back what ``holder`` has; None when it has nothing."""
        allocation = self._holders.pop(holder, None)
        if allocation is not None:
            self._held -= allocation.amount
        return allocation

    def holders(self) -> dict[str, Allocation]:
        """Return who has what."""
        return dict(self._holders)

    def resize_capacity(self, inventory: ResourceInventory) -> None:
        """Follow a changed inventory; holders keep what they have."""
        self._capacity = inventory.capacity
