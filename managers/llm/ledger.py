"""The ledger of the seats of a pool of backends.

Theory of operation. A holder has its seats on one backend, which its allocation names. Among the backends with
enough free seats, it gets the one that its trajectory had before, else the one with the least *load*:

- ``in_flight``: the seats taken now;
- ``paper``: the seats given out so far, as ProRL's min-heap counts.

A backend that is added, or works again, starts at the least load of the others, so that it gets its part of new
leases and not all of them. With ``in_flight`` this *head start* melts as the others' holders leave: by what their
load falls with each release, on average.

A backend that is drained, unhealthy or removed keeps its holders, and counts with what they hold; so does one with
fewer seats than are held. Without declared backends, the ledger counts a plain amount.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from domain.allocation import Allocation
from domain.backends import Balance, LlmBackend
from domain.errors import CapacityError
from domain.ids import ResourceId
from domain.inventory import ResourceInventory
from domain.resources import MILLI

#: Number under which seats without a backend are counted.
_NO_BACKEND: Final = 0


class LlmLedgerSnapshot(msgspec.Struct, frozen=True):
    """State of a ledger that does not follow from its holders."""

    #: By number of the backend, in order.
    credits: list[tuple[int, int]]


_encode = msgspec.msgpack.Encoder(order="deterministic").encode
_decode = msgspec.msgpack.Decoder(LlmLedgerSnapshot).decode


class LlmLedger:
    """Counts the seats of each backend."""

    def __init__(self, resource: ResourceId, inventory: ResourceInventory) -> None:
        self.resource = resource
        self._holders: dict[str, Allocation] = {}
        #: Milli-units that are held, by number of the backend; without those that hold nothing.
        self._on: dict[int, int] = {}
        #: Milli-units by which the load of a backend is more than it holds; without zeros.
        self._credits: dict[int, int] = {}
        self._limit = inventory.capacity
        self._pool = inventory.backends
        self._usable = _usable(inventory)

    @property
    def names_units(self) -> bool:
        """Whether allocations name a backend."""
        return self._pool is not None

    @property
    def capacity(self) -> int:
        """Seats of the usable backends and those held on others, up to the declared limit."""
        if self._pool is None:
            return self._limit
        present = sum(max(seats, self._on.get(number, 0)) for number, seats in self._usable.items())
        elsewhere = sum(held for number, held in self._on.items() if number not in self._usable)
        return min(self._limit, present + elsewhere)

    @property
    def free(self) -> int:
        """Amount not held; negative after the declared limit fell below what is held."""
        return self.capacity - sum(self._on.values())

    def feasible(self, amount: int) -> bool:
        """Say whether ``amount`` would fit if nothing were held."""
        if not 0 <= amount <= self._limit:
            return False
        return self._pool is None or any(amount <= seats for seats in self._usable.values())

    def fits(self, amounts: Sequence[int]) -> bool:
        """Say whether all ``amounts`` could be allocated now, in this order."""
        if not amounts:
            return True
        if min(amounts) < 0 or sum(amounts) > self.free:
            return False
        if self._pool is None:
            return True
        first = amounts[0]
        if first and all(amount == first for amount in amounts):
            rooms = (self._room(number) // first for number in self._usable)
            return sum(room for room in rooms if room > 0) >= len(amounts)
        return self._fit_in_turn(amounts)

    def _fit_in_turn(self, amounts: Iterable[int]) -> bool:
        """Whether unequal amounts fit one after another, each on the backend that it would get."""
        trial = self._copy()
        try:
            for number, amount in enumerate(amounts):
                trial.allocate(f"trial {number}", amount)
        except CapacityError:
            return False
        return True

    def _copy(self) -> LlmLedger:
        copied = LlmLedger(self.resource, ResourceInventory(self._limit, backends=self._pool))
        copied._on, copied._credits = dict(self._on), dict(self._credits)
        return copied

    def allocate(self, holder: str, amount: int, near: Sequence[int] = ()) -> Allocation:
        """Allocate seats on one backend. Raises CapacityError when they do not fit or ``holder`` has some."""
        if holder in self._holders:
            raise CapacityError(f"{holder} already holds {self.resource}")
        if amount < 0 or amount > self.free:
            raise CapacityError(f"{self.resource} has {self.free} free, {amount} were requested")
        if self._pool is None:
            return self._enter(holder, Allocation(self.resource, amount))
        number = self._choose(amount, near)
        if number is None:
            raise CapacityError(f"no backend of {self.resource} has {amount} free")
        if self._pool.balance is Balance.PAPER:
            self._credits[number] = self._credits.get(number, 0) + amount
        return self._enter(holder, Allocation(self.resource, amount, (number,), shared=True))

    def _choose(self, amount: int, near: Sequence[int]) -> int | None:
        """Return the number of the backend for ``amount``; None: it fits on none."""
        roomy = [number for number in self._usable if self._room(number) >= amount]
        for number in near:
            if number in roomy:
                return number
        return min(roomy, key=lambda number: (self._load(number), number), default=None)

    def _room(self, number: int) -> int:
        """Return the free amount of a usable backend."""
        return self._usable[number] - self._on.get(number, 0)

    def _load(self, number: int) -> int:
        assert self._pool is not None
        held = 0 if self._pool.balance is Balance.PAPER else self._on.get(number, 0)
        return held + self._credits.get(number, 0)

    def _enter(self, holder: str, allocation: Allocation) -> Allocation:
        self._holders[holder] = allocation
        number = _number_of(allocation)
        self._on[number] = self._on.get(number, 0) + allocation.amount
        return allocation

    def adopt(self, holder: str, allocation: Allocation) -> None:
        """Enter an allocation made earlier, without a check; it replaces that of ``holder``."""
        self._leave(holder)
        self._enter(holder, allocation)

    def release(self, holder: str) -> Allocation | None:
        """Release and return the allocation of ``holder``; None when it has none."""
        allocation = self._leave(holder)
        if allocation is not None and self._credits:
            self._melt(allocation)
        return allocation

    def _leave(self, holder: str) -> Allocation | None:
        allocation = self._holders.pop(holder, None)
        if allocation is not None:
            number = _number_of(allocation)
            self._on[number] -= allocation.amount
            if not self._on[number]:
                del self._on[number]
        return allocation

    def _melt(self, released: Allocation) -> None:
        """Take the part of a release at one of the others off each head start."""
        in_flight = self._pool is not None and self._pool.balance is Balance.IN_FLIGHT
        if not in_flight or _number_of(released) in self._credits:
            return
        others = len(self._usable.keys() - self._credits.keys())
        amount = max(1, released.amount // max(1, others))
        left = {number: credit - amount for number, credit in self._credits.items()}
        self._credits = {number: credit for number, credit in left.items() if credit > 0}

    def holders(self) -> dict[str, Allocation]:
        """Return the allocation of each holder."""
        return dict(self._holders)

    def resize_capacity(self, inventory: ResourceInventory) -> None:
        """Follow a changed inventory; holders keep what they have."""
        before, pool = self._usable, self._pool
        self._limit, self._pool = inventory.capacity, inventory.backends
        self._usable = _usable(inventory)
        if self._pool is None or pool is None or self._pool.balance is not pool.balance:
            self._credits = {}  # all backends count from now on
            return
        known = {each.number for each in self._pool.backends}
        self._credits = {n: credit for n, credit in self._credits.items() if n in known}
        others = [self._load(number) for number in self._usable if number in before]
        for number in self._usable.keys() - before.keys() if others else ():
            behind = min(others) - self._load(number)
            if behind > 0:
                self._credits[number] = self._credits.get(number, 0) + behind

    def remember(self) -> bytes:
        """Return the loads that holders do not determine."""
        return _encode(LlmLedgerSnapshot(sorted(self._credits.items())))

    def recall(self, memory: bytes) -> None:
        """Restore what `remember` returned."""
        self._credits = dict(_decode(memory).credits)


def _usable(inventory: ResourceInventory) -> dict[int, int]:
    """Return the milli-units of seats of each backend that takes new holders, by its number."""
    backends: tuple[LlmBackend, ...] = ()
    if inventory.backends is not None:
        backends = inventory.backends.backends
    return {each.number: each.seats * MILLI for each in backends if each.usable}


def _number_of(allocation: Allocation) -> int:
    return allocation.units[0] if allocation.units else _NO_BACKEND
