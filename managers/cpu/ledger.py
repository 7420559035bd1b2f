"""The ledger of a node's CPU cores.

Theory of operation. An amount of whole cores (1000, 2000, …) is *exclusive*: nobody else runs on
those cores. An amount below 1000 is *light*: it runs on shared cores that hold as many light
actions as their amounts add up to. Shared cores are taken from the free ones when the light sum
needs another, and go back when they are needed no more.

1. A light holder is told ``k = ceil(light sum / 1000)`` cores, itself included: the lowest ``k`` of
   the shared ones. The shared cores are exactly the union of what live light holders were told, so
   a core that anybody was told is never handed out exclusively, and a core nobody was told is free.
2. Light load never outgrows the shared cores: the youngest live light holder was told as many cores
   as all that live now, and more, needed. The same holds for every subset of them: light holders
   confined to some cores never need more than those cores give.
3. After light load fell, older holders may still keep more cores shared than the sum needs. Newer
   ones are told fewer, so the surplus drains; until then `fits` counts those cores as taken.
4. All state follows from who holds what, in any order: recovery by `adopt` yields the same ledger.

Exclusive cores come from one NUMA group where possible: the one where the holder is at home, if it has
enough, else the smallest sufficient one, so that large groups stay whole. Who is at home where is for
the caller to remember; the ledger keeps nothing of it. Ties and core ids: lowest first.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Sequence

from domain.allocation import Allocation
from domain.errors import CapacityError
from domain.ids import ResourceId
from domain.inventory import ResourceInventory
from domain.resources import MILLI


class CpuLedger:
    """Hands out exclusive cores, and shares of shared ones."""

    def __init__(self, resource: ResourceId, inventory: ResourceInventory) -> None:
        self.resource = resource
        self._holders: dict[str, Allocation] = {}
        #: Core → how many exclusive holders it has (more than one only by `adopt`).
        self._exclusive: dict[int, int] = {}
        #: Core → how many light holders were told it.
        self._told: dict[int, int] = {}
        self._held = 0
        self._light = 0
        self.resize_capacity(inventory)

    @property
    def capacity(self) -> int:
        """Milli-cores there are."""
        return self._capacity

    @property
    def free(self) -> int:
        """Milli-cores not held, those on shared cores included; see `free_cores`."""
        return self._capacity - self._held

    @property
    def free_cores(self) -> int:
        """Cores that could be handed out exclusively now."""
        return self._free_milli // MILLI

    @property
    def groups(self) -> int:
        """NUMA groups there are."""
        return len(self._free)

    def feasible(self, amount: int) -> bool:
        """Say whether ``amount`` would fit if nothing were held."""
        if amount < MILLI:
            return 0 < amount <= self._capacity
        return amount % MILLI == 0 and amount <= self._capacity

    def fits(self, amounts: Sequence[int]) -> bool:
        """Say whether all ``amounts`` could be allocated now, at once, to different holders."""
        if not amounts:
            return True
        whole = light = 0
        for amount in amounts:
            if amount >= MILLI:
                if amount % MILLI:
                    return False
                whole += amount
            elif amount > 0:
                light += amount
            else:
                return False
        if whole + light > self._capacity - self._held:
            return False
        if light:
            missing = self._cores_for(self._light + light) - len(self._shared)
            if missing > 0:
                whole += missing * MILLI
        return whole <= self._free_milli

    def allocate(self, holder: str, amount: int, near: Sequence[int] = ()) -> Allocation:
        """Hand out cores; raise CapacityError when they do not fit or ``holder`` has some.

        ``near``: cores beside which its memory lies. It changes which cores, never whether.
        """
        if holder in self._holders:
            raise CapacityError(f"{holder} already holds {self.resource}")
        if not self.fits((amount,)):
            raise CapacityError(f"{self.resource} has {self.free} free, {amount} were asked")
        if amount >= MILLI:
            units = self._take(amount // MILLI, self._home(near) if near else None)
            allocation = Allocation(self.resource, amount, units)
            for core in units:
                self._exclusive[core] = 1
        else:
            units = self._share(amount)
            allocation = Allocation(self.resource, amount, units, shared=True)
            for core in units:
                self._told[core] = self._told.get(core, 0) + 1
            self._light += amount
        self._holders[holder] = allocation
        self._held += amount
        return allocation

    def adopt(self, holder: str, allocation: Allocation) -> None:
        """Enter an allocation made earlier, unasked; it replaces what ``holder`` had."""
        self.release(holder)
        self._holders[holder] = allocation
        self._held += allocation.amount
        if allocation.shared:
            self._light += allocation.amount
        counts = self._told if allocation.shared else self._exclusive
        for core in allocation.units:
            counts[core] = counts.get(core, 0) + 1
            self._settle(core)

    def release(self, holder: str) -> Allocation | None:
        """Take back what ``holder`` has; None when it has nothing."""
        allocation = self._holders.pop(holder, None)
        if allocation is None:
            return None
        self._held -= allocation.amount
        if allocation.shared:
            self._light -= allocation.amount
        counts = self._told if allocation.shared else self._exclusive
        for core in allocation.units:
            self._leave(counts, core)
        return allocation

    def _leave(self, counts: dict[int, int], core: int) -> None:
        if counts[core] == 1:
            del counts[core]
            self._settle(core)
        else:
            counts[core] -= 1

    def resize(self, holder: str, amount: int, prefer: Sequence[int] = ()) -> Allocation:
        """Let ``holder`` of exclusive cores go on with ``amount``; return what it has then.

        It keeps the cores it has as far as they go, and ``prefer`` names those to get first; further
        ones come from where it has most, if they can. Given up are cores of the groups where it has
        fewest. Raises CapacityError when it holds no
        exclusive cores here, or when there are not so many.
        """
        held = self._holders.get(holder)
        if held is None or held.shared or amount < MILLI or amount % MILLI:
            raise CapacityError(f"{holder} cannot go on with {amount} of {self.resource}")
        more = amount - held.amount
        if more > 0 and not self.fits((more,)):
            raise CapacityError(f"{self.resource} has {self.free} free, {more} more were asked")
        units = self._kept(held.units, amount // MILLI, set(prefer))
        for core in set(held.units) - set(units):
            self._leave(self._exclusive, core)
        wanted = amount // MILLI - len(units)
        liked = [core for core in prefer if core in self._group_of and self._is_free(core)][:wanted]
        for core in liked:
            self._exclusive[core] = 1
            self._settle(core)
        taken = self._take(wanted - len(liked), self._home((*units, *liked)))
        for core in taken:
            self._exclusive[core] = 1
        allocation = Allocation(self.resource, amount, tuple(sorted((*units, *liked, *taken))))
        self._holders[holder] = allocation
        self._held += more
        return allocation

    def _kept(self, units: Sequence[int], count: int, preferred: set[int]) -> Sequence[int]:
        """Return the ``count`` cores that a holder of ``units`` keeps."""
        if count >= len(units):
            return units
        mine = Counter(self._group_of.get(core) for core in units)
        return sorted(
            units,
            key=lambda core: (
                core not in preferred,
                core not in self._group_of,
                -mine[self._group_of.get(core)],
                core,
            ),
        )[:count]

    def _is_free(self, core: int) -> bool:
        return core not in self._exclusive and core not in self._told

    def holders(self) -> dict[str, Allocation]:
        """Return who has what."""
        return dict(self._holders)

    def resize_capacity(self, inventory: ResourceInventory) -> None:
        """Follow a changed inventory; holders keep their cores, and lost cores do not come back."""
        limit = max(0, inventory.capacity) // MILLI
        groups = inventory.groups or (tuple(range(limit)),)
        self._group_of: dict[int, int] = {}
        for index, cores in enumerate(groups):
            for core in cores:
                if len(self._group_of) < limit:
                    self._group_of.setdefault(core, index)
        self._capacity = len(self._group_of) * MILLI
        #: Free cores of each group, and the shared cores of all; each rising by id.
        self._free: list[list[int]] = [[] for _ in groups]
        self._shared: list[int] = []
        self._free_milli = 0
        for core in self._group_of:
            self._settle(core)

    def _settle(self, core: int) -> None:
        """Move ``core`` to where its holders, or none, put it now."""
        index = self._group_of.get(core)
        if index is None:
            return
        exclusive, told = core in self._exclusive, core in self._told
        if told or self._shared:
            _keep(self._shared, core, wanted=told and not exclusive)
        gained = _keep(self._free[index], core, wanted=not told and not exclusive)
        self._free_milli += gained * MILLI

    def _share(self, amount: int) -> tuple[int, ...]:
        """Return the cores a light holder of ``amount`` is told, sharing more when needed."""
        needed = self._cores_for(self._light + amount)
        missing = needed - len(self._shared)
        if missing > 0:
            for core in self._take(missing):
                insort(self._shared, core)
        return tuple(self._shared[:needed])

    def _take(self, count: int, home: int | None = None) -> tuple[int, ...]:
        """Take ``count`` free cores: all at home, else best fit in one group, else largest first."""
        taken: list[int] = []
        if count == 1:
            self._free_milli -= MILLI
            return (self._best_group(1, home).pop(0),)
        while len(taken) < count:
            missing = count - len(taken)
            group = self._best_group(missing, home)
            taken += group[:missing]
            del group[:missing]
        self._free_milli -= count * MILLI
        return tuple(sorted(taken))

    def _best_group(self, count: int, home: int | None) -> list[int]:
        """Return the free cores of home or of the smallest group with ``count``, else the largest."""
        groups = self._free
        if len(groups) == 1:
            return groups[0]
        if home is not None and len(groups[home]) >= count:
            return groups[home]
        sufficient = [group for group in groups if len(group) >= count]
        return min(sufficient, key=len) if sufficient else max(groups, key=len)

    def _home(self, near: Sequence[int]) -> int | None:
        """Return the group where most of ``near`` are; None when none of them is there any more."""
        if not near or len(self._free) == 1:
            return None
        votes = Counter(self._group_of[core] for core in near if core in self._group_of)
        return min(votes, key=lambda group: (-votes[group], group), default=None)

    @staticmethod
    def _cores_for(light: int) -> int:
        return -(-light // MILLI)


def _keep(cores: list[int], core: int, *, wanted: bool) -> int:
    """Make ``core`` be in the sorted ``cores`` or not; return by how much they grew."""
    at = bisect_left(cores, core)
    present = at < len(cores) and cores[at] == core
    if present == wanted:
        return 0
    if wanted:
        cores.insert(at, core)
        return 1
    del cores[at]
    return -1
