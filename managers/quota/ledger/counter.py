"""The ledger of a plain counted amount.

Units have no identity, so the whole state is one sum. Memory is counted in bytes, everything else in
milli-units.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from domain.allocation import Allocation
from domain.errors import CapacityError
from domain.ids import ResourceId
from domain.inventory import ResourceInventory
from domain.ports.ledgers import unobserved


class CounterLedger:
    """Counts an amount of interchangeable units."""

    def __init__(self, resource: ResourceId, inventory: ResourceInventory) -> None:
        self.resource = resource
        self._capacity = inventory.capacity
        self._held = 0
        self._holders: dict[str, Allocation] = {}
        #: See `ObservedLedger`.
        self.changed: Callable[[], None] = unobserved

    @property
    def capacity(self) -> int:
        """Amount of the inventory."""
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
        """Allocate ``amount``. Raises CapacityError when it does not fit or ``holder`` has some."""
        if holder in self._holders:
            raise CapacityError(f"{holder} already holds {self.resource}")
        if amount < 0 or amount > self._capacity - self._held:
            raise CapacityError(f"{self.resource} has {self.free} free, {amount} were requested")
        allocation = Allocation(self.resource, amount)
        self._holders[holder] = allocation
        self._held += amount
        self.changed()
        return allocation

    def adopt(self, holder: str, allocation: Allocation) -> None:
        """Enter an allocation made earlier, without a check; it replaces that of ``holder``."""
        self.release(holder)
        self._holders[holder] = allocation
        self._held += allocation.amount
        self.changed()

    def release(self, holder: str) -> Allocation | None:
        """Release and return the allocation of ``holder``; None when it has none."""
        allocation = self._holders.pop(holder, None)
        if allocation is not None:
            self._held -= allocation.amount
            self.changed()
        return allocation

    def holders(self) -> dict[str, Allocation]:
        """Return the allocation of each holder."""
        return dict(self._holders)

    def resize_capacity(self, inventory: ResourceInventory) -> None:
        """Follow a changed inventory; holders keep what they have."""
        self._capacity = inventory.capacity
        self.changed()
