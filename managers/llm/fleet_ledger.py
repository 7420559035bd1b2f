"""The ledger of the slots of one worker of a fleet.

Each worker is a resource, ``fleet:NAME#NUMBER``, so that a generation waits for its worker alone and another worker's queue does not
hold it back. An allocation names the worker in ``units``, and is shared: many generations run there.

A worker that gets no further generation has a capacity of 0; its holders keep their slots, and ``free`` is negative. Another
resource of this kind, which configurations of earlier versions may declare, is a plain amount.
"""

from __future__ import annotations

from collections.abc import Sequence

from domain.allocation import Allocation
from domain.errors import CapacityError
from domain.fleets import fleet_of
from domain.ids import ResourceId
from domain.inventory import ResourceInventory


class SlotLedger:
    """Counts the slots of a worker."""

    def __init__(self, resource: ResourceId, inventory: ResourceInventory) -> None:
        self.resource = resource
        worker = fleet_of(resource)
        self._units: tuple[int, ...] = () if worker is None else (worker[1],)
        self._capacity = inventory.capacity
        self._held = 0
        self._holders: dict[str, Allocation] = {}

    @property
    def capacity(self) -> int:
        """Slots that generations may take; 0 while the worker gets none."""
        return self._capacity

    @property
    def free(self) -> int:
        """Amount not held; negative after the capacity fell below what is held."""
        return self._capacity - self._held

    def feasible(self, amount: int) -> bool:
        """Say whether ``amount`` would fit if nothing were held."""
        return 0 <= amount <= self._capacity

    def fits(self, amounts: Sequence[int]) -> bool:
        """Say whether all ``amounts`` could be allocated now, at once."""
        if not amounts:
            return True
        return min(amounts) >= 0 and sum(amounts) <= self.free

    def allocate(self, holder: str, amount: int) -> Allocation:
        """Allocate slots. Raises CapacityError when they do not fit or ``holder`` has some."""
        if holder in self._holders:
            raise CapacityError(f"{holder} already holds {self.resource}")
        if amount < 0 or amount > self.free:
            raise CapacityError(f"{self.resource} has {self.free} free, {amount} were requested")
        allocation = Allocation(self.resource, amount, self._units, shared=bool(self._units))
        self._enter(holder, allocation)
        return allocation

    def _enter(self, holder: str, allocation: Allocation) -> None:
        self._holders[holder] = allocation
        self._held += allocation.amount

    def adopt(self, holder: str, allocation: Allocation) -> None:
        """Enter an allocation made earlier, without a check; it replaces that of ``holder``."""
        self.release(holder)
        self._enter(holder, allocation)

    def release(self, holder: str) -> Allocation | None:
        """Release and return the allocation of ``holder``; None when it has none."""
        allocation = self._holders.pop(holder, None)
        if allocation is not None:
            self._held -= allocation.amount
        return allocation

    def holders(self) -> dict[str, Allocation]:
        """Return the allocation of each holder."""
        return dict(self._holders)

    def resize_capacity(self, inventory: ResourceInventory) -> None:
        """Follow a changed inventory; holders keep what they have."""
        self._capacity = inventory.capacity
