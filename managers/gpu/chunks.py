"""Who holds which chunk, and what is free beside them: the ledger of GPUs without its services.

Rules, lifetimes and invariants: `managers.gpu`. A GPU is free when it is healthy and nobody holds it;
free GPUs are read as the largest aligned blocks that they form (`buddies`).
"""

from __future__ import annotations

from collections.abc import Sequence

from domain.allocation import Allocation
from domain.chunks import Counts, amount_at, beside, fit, level_of
from domain.errors import CapacityError
from domain.ids import ResourceId
from domain.inventory import ResourceInventory
from domain.operators import ChunksOperator
from domain.resources import MILLI
from managers.gpu.buddies import Buddies
from managers.gpu.layout import Layout


class Chunks:
    """Holders of aligned chunks of 1, 2, 4 and 8 GPUs."""

    def __init__(self, resource: ResourceId, inventory: ResourceInventory) -> None:
        self.resource = resource
        self._holders: dict[str, Allocation] = {}
        #: Unit → how many holders it has (more than one only by `adopt`).
        self._held: dict[int, int] = {}
        self._held_milli = 0
        self._lay_out_gpus(inventory)

    @property
    def capacity(self) -> int:
        """Milli-units of healthy GPUs."""
        return self._layout.capacity

    @property
    def free(self) -> int:
        """Milli-units not held, cached ones included."""
        return self._layout.capacity - self._held_milli

    @property
    def counts(self) -> Counts:
        """Free chunks of 1, 2, 4 and 8 GPUs, each as large as it can be."""
        return self._buddies.counts

    @property
    def memory_bytes(self) -> int:
        """Bytes of each GPU; 1 where none are declared, and every service takes it."""
        return self._layout.memory_bytes

    def feasible(self, amount: int) -> bool:
        """Say whether ``amount`` would fit if nothing were held."""
        level = level_of(amount)
        return level is not None and fit(self._most, (level,))

    def fits(self, amounts: Sequence[int]) -> bool:
        """Say whether chunks for all ``amounts`` could be allocated now, at once."""
        if not amounts:
            return True
        levels = [level_of(amount) for amount in amounts]
        known = [level for level in levels if level is not None]
        return (
            len(known) == len(levels)
            and sum(map(amount_at, known)) <= self.free
            and fit(self._buddies.counts, known)
        )

    def operator(self, claims: Sequence[int]) -> ChunksOperator:
        """Say what could be handed out beside ``claims``, which fit."""
        return ChunksOperator(beside(self.counts, claims))

    def take(self, holder: str, units: Sequence[int]) -> Allocation:
        """Hand out just these GPUs; raise CapacityError when they are no free chunk."""
        slots = self._layout.chunk(units)
        free = all(self._buddies.free(slot) for slot in slots) and len(slots) * MILLI <= self.free
        if not slots or not free or holder in self._holders:
            raise CapacityError(f"{tuple(units)} of {self.resource} are no free chunk for {holder}")
        allocation = Allocation(self.resource, len(slots) * MILLI, tuple(units))
        self.adopt(holder, allocation)
        return allocation

    def adopt(self, holder: str, allocation: Allocation) -> None:
        """Enter an allocation made earlier, unasked; it replaces what ``holder`` had."""
        self.release(holder)
        self._holders[holder] = allocation
        if not self._joins(allocation):
            self._held_milli += allocation.amount
        for unit in allocation.units:
            self._held[unit] = self._held.get(unit, 0) + 1
            self._settle(unit)

    def release(self, holder: str) -> Allocation | None:
        """Take back what ``holder`` has. None when it has nothing."""
        allocation = self._holders.pop(holder, None)
        if allocation is None:
            return None
        for unit in allocation.units:
            self._held[unit] -= 1
            if not self._held[unit]:
                del self._held[unit]
            self._settle(unit)
        if not self._joins(allocation):
            self._held_milli -= allocation.amount
        return allocation

    def holders(self) -> dict[str, Allocation]:
        """Return who has what."""
        return dict(self._holders)

    def _joins(self, allocation: Allocation) -> bool:
        """Say whether others than ``allocation`` share its GPUs, which count once."""
        return allocation.shared and any(unit in self._held for unit in allocation.units)

    def _slots_of(self, holder: str) -> tuple[int, ...]:
        allocation = self._holders.get(holder)
        slots = self._layout.chunk(allocation.units) if allocation is not None else ()
        if not slots:
            raise CapacityError(f"{holder} has no healthy chunk of {self.resource}")
        return slots

    def _lay_out_gpus(self, inventory: ResourceInventory) -> None:
        self._layout = Layout(inventory)
        self._buddies = Buddies(self._layout.cells)
        for unit in self._layout.healthy:
            self._buddies.set(self._layout.slot_of[unit], free=True)
        #: What there would be to hand out if nothing were held.
        self._most = self._buddies.counts
        for unit in self._held:
            self._settle(unit)

    def _settle(self, unit: int) -> None:
        """Make ``unit`` free or not, as its health and holders say."""
        slot = self._layout.slot_of.get(unit)
        if slot is not None:
            self._buddies.set(slot, free=unit in self._layout.healthy and unit not in self._held)
