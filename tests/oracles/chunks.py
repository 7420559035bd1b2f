"""Oracle of the chunk ledger: GPUs as sets, with a search over every chunk.

There are no bytes, tables or arrays here. A block is free when its GPUs are; the largest ones are
found by trying all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

from tests.oracles.literal import Action

SIZES = (1, 2, 4, 8)
Block = tuple[int, ...]


@dataclass
class Cached:
    """A service in memory."""

    service: str
    units: Block
    memory: int
    used: int


@dataclass
class Model:
    """GPUs of nodes, with their holders and the services in memory."""

    nodes: Sequence[Sequence[int]]
    memory: int
    unhealthy: set[int] = field(default_factory=set)
    held: dict[str, Block] = field(default_factory=dict)
    cached: list[Cached] = field(default_factory=list)
    serving: dict[str, str] = field(default_factory=dict)
    uses: int = 0

    def aligned(self) -> Iterator[Block]:
        """Yield every aligned block there is, of every size."""
        for size, node in product(SIZES, self.nodes):
            for first in range(0, len(node) - size + 1, size):
                yield tuple(node[first : first + size])

    def free(self) -> list[Block]:
        """Return the largest blocks of healthy GPUs without a holder."""
        taken = self.unhealthy.union(*self.held.values())
        open_ = [block for block in self.aligned() if not taken & set(block)]
        return [block for block in open_ if not any(set(block) < set(other) for other in open_)]

    def counts(self) -> tuple[int, ...]:
        """Return the free blocks by size."""
        sizes = [len(block) for block in self.free()]
        return tuple(sizes.count(size) for size in SIZES)

    def best(self, gpus: int, service: str, memory: int) -> Block | None:
        """Return the chunk that the rules choose."""
        size = next((each for each in SIZES if each >= gpus), 99)
        sources = [block for block in self.free() if len(block) >= size]
        if not sources:
            return None
        smallest = min(map(len, sources))
        inside = [
            chunk
            for chunk in self.aligned()
            if len(chunk) == size
            and any(set(chunk) <= set(block) for block in sources if len(block) == smallest)
        ]
        return min(inside, key=lambda chunk: self._preference(chunk, service, memory))

    def _preference(self, chunk: Block, service: str, memory: int) -> tuple[int, int, int]:
        there = [each for each in self.cached if set(each.units) & set(chunk)]
        caches = any((each.service, each.units) == (service, chunk) for each in there)
        if caches or all(self.room(unit) >= memory for unit in chunk):
            cost = 0
        else:
            cost = max(each.used for each in there)
        return (0 if caches else 1, cost, self._position(chunk[0]))

    def _position(self, unit: int) -> int:
        return [each for node in self.nodes for each in node].index(unit)

    def room(self, unit: int) -> int:
        """Return the memory of a GPU that no service needs."""
        return self.memory - sum(each.memory for each in self.cached if unit in each.units)

    def occupy(self, holder: str, service: str, memory: int) -> tuple[bool, list[str]]:
        """Return whether the service was resident, and the evicted services."""
        chunk = self.held[holder]
        self.serving[holder] = service
        self.uses += 1
        for each in self.cached:
            if (each.service, each.units) == (service, chunk):
                each.used = self.uses
                return True, []
        left = []
        for each in sorted(self.cached, key=lambda each: each.used):
            short = {unit for unit in chunk if self.room(unit) < memory}
            if short & set(each.units):
                self.cached.remove(each)
                left.append(each.service)
        self.cached.append(Cached(service, chunk, memory, self.uses))
        return False, left

    def join(self, holder: str, service: str) -> None:
        """Let the service that works on the holder's chunk work for it too."""
        self.serving[holder] = service
        self.uses += 1
        for each in self.cached:
            if (each.service, each.units) == (service, self.held[holder]):
                each.used = self.uses

    def release(self, holder: str) -> None:
        """Take back, and note the use."""
        chunk = self.held.pop(holder)
        service = self.serving.pop(holder, None)
        for each in self.cached:
            if (each.service, each.units) == (service, chunk):
                self.uses += 1
                each.used = self.uses

    def fail(self, unit: int) -> None:
        """Lose a GPU, and what is on it."""
        self.unhealthy.add(unit)
        self.cached = [each for each in self.cached if unit not in each.units]


def pack(free: Sequence[int], gpus: Iterable[int]) -> bool:
    """Say whether chunks for all ``gpus`` fit, by trying every free chunk for each of them."""
    wanted = sorted(gpus, reverse=True)
    if not wanted:
        return True
    size = next((each for each in SIZES if each >= wanted[0]), 99)
    return any(
        free[at] and pack(_cut(free, at, size), wanted[1:])
        for at in range(len(SIZES))
        if SIZES[at] >= size
    )


def _cut(free: Sequence[int], at: int, size: int) -> list[int]:
    """Take ``size`` GPUs out of a chunk; what remains of it are chunks of every size between."""
    left = list(free)
    left[at] -= 1
    for half in range(SIZES.index(size), at):
        left[half] += 1
    return left


def best_chunks(candidates: Sequence[Action], free: Sequence[int]) -> float:
    """Return the least sum of durations over all allocations that fit; inf when none does."""
    allocations = product(*(range(len(each.units)) for each in candidates))
    return min(
        (
            sum(each.seconds[k] for each, k in zip(candidates, chosen, strict=True))
            for chosen in allocations
            if pack(free, [each.units[k] for each, k in zip(candidates, chosen, strict=True)])
        ),
        default=float("inf"),
    )
