"""The ledger of a node's CPU cores.

Theory of operation. An amount of whole cores (1000, 2000, …) is *exclusive*: no other action runs on
those cores. An amount below 1000 is *light*: it runs on shared cores, as many as the sum of light
amounts needs. A free core becomes shared when the light sum needs another one, and free again when
no light holder has it. Where the node keeps cores for that (`managers.cpu.shared_cores`), light actions
run on those, and need further ones only for the sum beyond the kept cores' budget. Only that excess
counts against the capacity: the kept cores are no part of it.

A node too small to keep cores has a *yielding* amount instead: as long as it lasts, light actions run on all
cores, also granted ones, with a lower weight. They take nothing of the capacity, and wait for no core.

1. A light holder gets the kept cores and ``k = ceil(excess / 1000)`` others, its own amount included:
   the lowest ``k`` of the shared ones. The shared cores are exactly the union of the cores of light
   holders, so such a core is never granted exclusively.
2. Light load never outgrows the shared cores: the youngest light holder got at least as many cores as
   all present ones need. The same holds for every subset of them: light holders confined to some
   cores never need more than those cores give.
3. After light load fell, older holders may keep more cores shared than the sum needs. Newer ones get
   fewer, so the surplus drains; until then `fits` counts those cores as taken.
4. All state follows from the allocations, in any order: recovery by `adopt` yields the same ledger.

Exclusive cores come from one NUMA group where possible: the group of the ``near`` cores, if it has
enough, else the smallest sufficient one, so that large groups stay whole. The caller remembers which
cores are near; the ledger does not. Ties and core ids: lowest first.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Sequence

from domain.allocation import Allocation
from domain.errors import CapacityError
from domain.ids import ResourceId
from domain.inventory import ResourceInventory
from domain.ports.ledgers import unobserved
from domain.resources import MILLI


class CpuLedger:
    """Allocates exclusive cores, and shares of shared ones."""

    def __init__(self, resource: ResourceId, inventory: ResourceInventory) -> None:
        self.resource = resource
        self._holders: dict[str, Allocation] = {}
        #: Core → number of exclusive holders (above one only by `adopt`).
        self._exclusive: dict[int, int] = {}
        #: Core → number of light holders.
        self._light_counts: dict[int, int] = {}
        self._held = 0
        self._light = 0
        #: Amount of holders that yield; it is in no other count.
        self._yielding = 0
        #: See `ObservedLedger`.
        self.changed: Callable[[], None] = unobserved
        self.resize_capacity(inventory)

    @property
    def capacity(self) -> int:
        """Milli-cores of the inventory."""
        return self._capacity

    @property
    def free(self) -> int:
        """Milli-cores not held, those on shared cores included; see `free_cores`."""
        light, budget = self._light, self._budget
        return self._capacity - self._held + (light if light < budget else budget)

    @property
    def free_cores(self) -> int:
        """Cores that could be granted exclusively now."""
        return self._free_milli // MILLI

    @property
    def groups(self) -> int:
        """Number of NUMA groups."""
        return len(self._free)

    def feasible(self, amount: int) -> bool:
        """Say whether ``amount`` would fit if nothing were held."""
        if amount < MILLI:
            return 0 < amount <= max(self._capacity + self._budget, self._yielding_capacity)
        return amount % MILLI == 0 and amount <= self._capacity

    @property
    def has_room_beside(self) -> bool:
        """Say whether light actions may run beside the capacity."""
        return self._budget > 0 or self._yielding_capacity > 0

    def fits_beside(self, amounts: Sequence[int]) -> bool:
        """Say whether all ``amounts`` could be allocated now without any of the capacity."""
        if self.free < 0 or not all(0 < amount < MILLI for amount in amounts):
            return False
        room = self._yielding_capacity - self._yielding
        light = self._light
        for amount in amounts:
            if amount <= room:
                room -= amount
            else:
                light += amount
        return light <= max(self._light, self._budget)

    def fits(self, amounts: Sequence[int]) -> bool:
        """Say whether all ``amounts`` could be allocated now, at once, to different holders."""
        if not amounts:
            return True
        if len(amounts) == 1 and amounts[0] >= MILLI:  # nearly always
            amount = amounts[0]
            return amount <= self._free_milli and amount <= self.free and not amount % MILLI
        whole = light = 0
        room = self._yielding_capacity - self._yielding
        for amount in amounts:
            if amount >= MILLI:
                if amount % MILLI:
                    return False
                whole += amount
            elif 0 < amount <= room:
                room -= amount
            elif amount > 0:
                light += amount
            else:
                return False
        free = self.free
        if not light:
            return whole <= self._free_milli and whole <= free >= 0
        excess = self._excess(self._light + light) - self._excess(self._light)
        if whole + excess > free or free < 0:
            return False
        missing = self._cores_for(self._light + light) - len(self._shared)
        return whole + max(0, missing) * MILLI <= self._free_milli

    def allocate(self, holder: str, amount: int, near: Sequence[int] = ()) -> Allocation:
        """Allocate cores. Raises CapacityError when they do not fit or ``holder`` has some.

        ``near``: cores close to its memory. They change which cores it gets, never whether.
        """
        if holder in self._holders:
            raise CapacityError(f"{holder} already holds {self.resource}")
        if not self.fits((amount,)):
            raise CapacityError(f"{self.resource} has {self.free} free, {amount} were requested")
        if amount <= self._yielding_capacity - self._yielding and amount < MILLI:
            allocation = Allocation(
                self.resource, amount, tuple(sorted(self._group_of)), shared=True, yields=True
            )
            self._yielding += amount
            self._holders[holder] = allocation
            return allocation
        if amount >= MILLI:
            units = self._take(amount // MILLI, self._near_group(near) if near else None)
            allocation = Allocation(self.resource, amount, units)
            for core in units:
                self._exclusive[core] = 1
        else:
            units = self._share(amount)
            allocation = Allocation(self.resource, amount, units, shared=True)
            for core in units:
                self._light_counts[core] = self._light_counts.get(core, 0) + 1
            self._light += amount
        self._holders[holder] = allocation
        self._held += amount
        self.changed()
        return allocation

    def adopt(self, holder: str, allocation: Allocation) -> None:
        """Enter an allocation made earlier, without a check; it replaces that of ``holder``."""
        self.release(holder)
        self._holders[holder] = allocation
        if allocation.yields:
            self._yielding += allocation.amount
            return
        self._held += allocation.amount
        if allocation.shared:
            self._light += allocation.amount
        counts = self._light_counts if allocation.shared else self._exclusive
        for core in allocation.units:
            counts[core] = counts.get(core, 0) + 1
            self._classify(core)
        self.changed()

    def release(self, holder: str) -> Allocation | None:
        """Release and return the allocation of ``holder``; None when it has none."""
        allocation = self._holders.pop(holder, None)
        if allocation is None:
            return None
        if allocation.yields:
            self._yielding -= allocation.amount
            return allocation
        self._held -= allocation.amount
        if allocation.shared:
            self._light -= allocation.amount
        counts = self._light_counts if allocation.shared else self._exclusive
        for core in allocation.units:
            self._drop_holder(counts, core)
        self.changed()
        return allocation

    def _drop_holder(self, counts: dict[int, int], core: int) -> None:
        if counts[core] == 1:
            del counts[core]
            self._classify(core)
        else:
            counts[core] -= 1

    def resize(self, holder: str, amount: int, prefer: Sequence[int] = ()) -> Allocation:
        """Change the exclusive cores of ``holder`` to ``amount``; return its new allocation.

        It keeps its present cores as far as possible, and gets those of ``prefer`` first; further ones
        come from the group where it has most. It gives up cores of the groups where it has fewest.
        Raises CapacityError when it holds no exclusive cores here, or too few are free.
        """
        held = self._holders.get(holder)
        if held is None or held.shared or amount < MILLI or amount % MILLI:
            raise CapacityError(f"{holder} cannot be resized to {amount} of {self.resource}")
        more = amount - held.amount
        if more > 0 and not self.fits((more,)):
            raise CapacityError(f"{self.resource} has {self.free} free, {more} more were requested")
        units = self._cores_to_keep(held.units, amount // MILLI, prefer)
        if more < 0:
            for core in set(held.units).difference(units):
                self._drop_holder(self._exclusive, core)
        else:
            units = (*units, *self._take_more(units, amount // MILLI - len(units), prefer))
        allocation = Allocation(self.resource, amount, tuple(sorted(units)))
        self._holders[holder] = allocation
        self._held += more
        self.changed()
        return allocation

    def _take_more(self, units: Sequence[int], count: int, prefer: Sequence[int]) -> list[int]:
        """Take ``count`` free cores for a holder of ``units``, those of ``prefer`` first."""
        taken: list[int] = []
        for core in prefer:
            if len(taken) < count and core in self._group_of and self._is_free(core):
                self._exclusive[core] = 1
                self._classify(core)
                taken.append(core)
        further = self._take(count - len(taken), self._near_group((*units, *taken)))
        for core in further:
            self._exclusive[core] = 1
        return [*taken, *further]

    def _cores_to_keep(
        self, units: Sequence[int], count: int, preferred: Sequence[int]
    ) -> Sequence[int]:
        """Return the ``count`` cores that a holder of ``units`` keeps."""
        if count >= len(units):
            return units
        groups = self._group_of
        if len(self._free) == 1 and not preferred and all(map(groups.__contains__, units)):
            return sorted(units)[:count]
        mine = Counter(groups.get(core) for core in units)
        return sorted(
            units,
            key=lambda core: (
                core not in preferred,
                core not in groups,
                -mine[groups.get(core)],
                core,
            ),
        )[:count]

    def _is_free(self, core: int) -> bool:
        return core not in self._exclusive and core not in self._light_counts

    def holders(self) -> dict[str, Allocation]:
        """Return the allocation of each holder."""
        return dict(self._holders)

    def resize_capacity(self, inventory: ResourceInventory) -> None:
        """Follow a changed inventory; holders keep their cores, and lost cores are not reused."""
        limit = max(0, inventory.capacity) // MILLI
        groups = inventory.groups or (tuple(range(limit)),)
        self._group_of: dict[int, int] = {}
        for index, cores in enumerate(groups):
            for core in cores:
                if len(self._group_of) < limit:
                    self._group_of.setdefault(core, index)
        self._capacity = len(self._group_of) * MILLI
        self._yielding_capacity = inventory.yielding_capacity if self._group_of else 0
        #: Cores beside the capacity for light holders, and their amount there, as the node declares them.
        self._declared = (
            tuple(core for core in inventory.shared_units if core not in self._group_of),
            inventory.shared_capacity,
        )
        self._open_kept()
        #: Free cores of each group, and the shared cores of all; each rising by id.
        self._free: list[list[int]] = [[] for _ in groups]
        self._shared: list[int] = []
        self._free_milli = 0
        for core in self._group_of:
            self._classify(core)
        self.changed()

    def _classify(self, core: int) -> None:
        """List ``core`` as shared, free or neither, from its holders."""
        index = self._group_of.get(core)
        if index is None:
            if core in self._declared[0]:
                self._open_kept()
            return
        exclusive, light = core in self._exclusive, core in self._light_counts
        if light or self._shared:
            _set_member(self._shared, core, wanted=light and not exclusive)
        gained = _set_member(self._free[index], core, wanted=not light and not exclusive)
        self._free_milli += gained * MILLI

    def _open_kept(self) -> None:
        """Use the declared cores, except those that were granted before the node kept them."""
        cores, amount = self._declared
        self._kept = tuple(core for core in cores if core not in self._exclusive)
        self._budget = amount if self._kept else 0

    def _share(self, amount: int) -> tuple[int, ...]:
        """Return the cores for a light holder of ``amount``, sharing more when needed."""
        needed = self._cores_for(self._light + amount)
        missing = needed - len(self._shared)
        if missing > 0:
            for core in self._take(missing):
                insort(self._shared, core)
        return (*self._kept, *self._shared[:needed])

    def _take(self, count: int, near_group: int | None = None) -> tuple[int, ...]:
        """Take ``count`` free cores: all of the near group, else best fit, else largest groups first."""
        taken: list[int] = []
        if count == 1:
            self._free_milli -= MILLI
            return (self._best_group(1, near_group).pop(0),)
        while len(taken) < count:
            missing = count - len(taken)
            group = self._best_group(missing, near_group)
            taken += group[:missing]
            del group[:missing]
        self._free_milli -= count * MILLI
        return tuple(sorted(taken))

    def _best_group(self, count: int, near_group: int | None) -> list[int]:
        """Return the free cores of the near or the smallest group with ``count``, else the largest."""
        groups = self._free
        if len(groups) == 1:
            return groups[0]
        if near_group is not None and len(groups[near_group]) >= count:
            return groups[near_group]
        sufficient = [group for group in groups if len(group) >= count]
        return min(sufficient, key=len) if sufficient else max(groups, key=len)

    def _near_group(self, near: Sequence[int]) -> int | None:
        """Return the group with most of ``near``; None when the inventory has none of them."""
        if not near or len(self._free) == 1:
            return None
        votes = Counter(self._group_of[core] for core in near if core in self._group_of)
        return min(votes, key=lambda group: (-votes[group], group), default=None)

    def _excess(self, light: int) -> int:
        """Return the part of a light sum that the kept cores do not hold."""
        return max(0, light - self._budget)

    def _cores_for(self, light: int) -> int:
        return -(-self._excess(light) // MILLI)


def _set_member(cores: list[int], core: int, *, wanted: bool) -> int:
    """Insert ``core`` into the sorted ``cores`` or remove it; return the change of their number."""
    at = bisect_left(cores, core)
    present = at < len(cores) and cores[at] == core
    if present == wanted:
        return 0
    if wanted:
        cores.insert(at, core)
        return 1
    del cores[at]
    return -1
