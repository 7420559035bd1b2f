"""List schedule of what waits in a pool, on nodes that are there and on those that join. Pure.

1. An action starts on one node that has all of its amounts free. Nodes that are alike are one *bin*; a start that fills some of them
   divides it. Actions that are bound to the node of their environment start on nodes that are there already.
2. When units are released, or nodes join, each kind of what waits is tried there, in the order of the rows. A kind of which a node takes
   few has one node kept for it from its first moment: it waits until that has enough, as the head of a queue does in the scheduler.
3. What runs ends in equal parts, spread evenly over twice what is left of it. Where a node runs fewer actions than there are parts, it is
   nodes that become free one after the other, and else each releases parts of what is held there.
4. At most `_MOST_KINDS` kinds, `_MOST_STARTS` starts and `_MOST_PLACES` places are listed: the rest of the kinds, and of the places of a shape, are
   one with their means, the rest of the starts is work divided by servers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from contract.pool_demands import DemandRow
from domain.chunks import Counts, level_of, without
from scheduler.runtime.node_groups.pool_load import (
    NodesFrom,
    Pairs,
    Place,
    PoolLoad,
    Takers,
    slots_of,
)
from scheduler.runtime.node_groups.queue_estimate import NEVER_SECONDS

_MOST_KINDS: Final = 8
_MOST_STARTS: Final = 48
#: Kinds of nodes that are there.
_MOST_PLACES: Final = 8
#: What runs ends in so many parts of each row, and of each shape.
_PARTS_OF_ROW: Final = 3
_PARTS: Final = 6
#: A kind of which an empty node takes no more is kept a node.
_FEW: Final = 4
_GPU: Final = "gpu"


class _WaitingKind(NamedTuple):
    """Actions that wait and are alike."""

    needs: Pairs
    #: What they release at their end: the memory of an environment stays held.
    released: Pairs
    bound: bool
    seconds: float
    waiting: int
    slots: tuple[int, ...]
    takers: Takers
    #: Level of its chunk; None: no GPUs, or no such chunk.
    level: int | None


class _Bin:
    """Nodes of one shape with equal amounts free."""

    __slots__ = ("chunks", "count", "free", "is_new", "kept_for", "parts", "shape")

    def __init__(
        self, shape: int, count: int, free: list[int], is_new: bool, chunks: Counts | None, kept_for: int = -1
    ) -> None:  # fmt: skip
        self.shape = shape
        self.count = count
        self.free = free
        self.is_new = is_new
        self.chunks = chunks
        self.kept_for = kept_for
        #: What it was divided into.
        self.parts: Sequence[_Bin] = ()

    def divided(self, count: int) -> _Bin:
        """Return ``count`` of the nodes as a bin; the others are another one, and this one is over."""
        kept = self.is_new, self.chunks, self.kept_for
        first = _Bin(self.shape, count, self.free.copy(), *kept)
        self.parts = first, _Bin(self.shape, self.count - count, self.free.copy(), *kept)
        return first


def _leaves(bins: Iterable[_Bin]) -> list[_Bin]:
    """Return what bins were divided into, and those that were not."""
    found: list[_Bin] = []
    for each in bins:
        if not each.parts:
            found.append(each)
            continue
        left = [each]
        while left:
            one = left.pop()
            if one.parts:
                left += reversed(one.parts)
            else:
                found.append(one)
    return found


@dataclass
class ListedWaits:
    """What a schedule found."""

    #: Class → sum of the waits; → when the last unbound action of it starts.
    sums: dict[Takers, float] = field(default_factory=dict)
    drained_at: dict[Takers, float] = field(default_factory=dict)

    def add(self, kind: _WaitingKind, count: int, seconds: float) -> None:
        """Add actions that start after so long."""
        takers = kind.takers
        self.sums[takers] = self.sums.get(takers, 0.0) + count * seconds
        if not kind.bound and seconds >= self.drained_at.get(takers, 0.0):
            self.drained_at[takers] = seconds


class WaitList:
    """What waits in a load, prepared for schedules on several paths."""

    def __init__(self, load: PoolLoad) -> None:
        self._load = load
        self.kinds = _kinds(load)
        self._ends: dict[tuple[int, int], list[tuple[float, float]]] = {}
        self._units: dict[tuple[int, int], float] = {}
        if self.kinds:
            self._look_at_running()
            self._places = list(_merged(load.places, self.kinds))

    def schedule(self, path: Sequence[NodesFrom]) -> ListedWaits:
        """Return the waits with the groups' nodes over time."""
        waits = ListedWaits()
        if not self.kinds:
            return waits
        last = self._load.all_nodes(path[-1].nodes)
        run = _ListRun(self.kinds, waits)
        for number, kind in enumerate(self.kinds):
            if not any(fits and there for fits, there in zip(kind.slots, last, strict=True)):
                waits.add(kind._replace(bound=True), kind.waiting, NEVER_SECONDS)
                run.left[number] = 0
        bins = self._bins(path, run)
        run.begin(bins)
        run.go(self._servers(last))
        return waits

    def _servers(self, last: Sequence[int]) -> list[float]:
        return [
            float(sum(fits * there for fits, there in zip(kind.slots, last, strict=True)))
            for kind in self.kinds
        ]

    def _bins(self, path: Sequence[NodesFrom], run: _ListRun) -> list[_Bin]:
        """Return the nodes that are there; enter what they release and what joins into the schedule."""
        load, bins = self._load, []
        for shape in range(len(load.shapes)):
            places = [place for place in self._places if place.shape == shape]
            if shape < load.groups:
                places = self._with(places, shape, path[0].nodes[shape])
            for place in places:
                found = _Bin(shape, place.nodes, list(place.free), False, place.chunks)
                bins.append(found)
                self._enter_ends(found, run)
        before = path[0].nodes
        for each in path[1:]:
            for group, (had, has) in enumerate(zip(before, each.nodes, strict=True)):
                if has > had:
                    free = list(load.capacities[group])
                    run.enter(each.after_seconds, _Bin(group, has - had, free, True, None), None)
            before = each.nodes
        return bins

    def _with(self, places: list[Place], shape: int, nodes: int) -> list[Place]:
        """Return the places of a group with so many nodes: more are empty, with fewer the others hold what those held."""
        there = sum(place.nodes for place in places)
        have = self._load.capacities[shape]
        if nodes > there:
            return [*places, Place(shape, nodes - there, have)]
        if nodes == there or not nodes:
            return places if nodes else []
        free = tuple(
            capacity - (there * capacity - sum(place.nodes * place.free[position] for place in places)) // nodes
            for position, capacity in enumerate(have)
        )  # fmt: skip
        return [Place(shape, nodes, free)]

    def _look_at_running(self) -> None:
        """Find when what runs on each shape releases which shares of each resource (rule 3)."""
        load = self._load
        points: dict[tuple[int, int], list[tuple[float, float, float]]] = {}
        for row, slots in zip(load.rows, load.row_slots, strict=True):
            pairs = load.fitted(row.needs)[0] if row.running else None
            for position, amount in pairs or ():
                for shape, fits in enumerate(slots):
                    if fits:
                        points.setdefault((shape, position), []).append(
                            (row.residual_seconds, row.running * amount, row.running)
                        )
        for key, found in points.items():
            total = sum(weight for _, weight, _ in found)
            self._units[key] = total / sum(count for _, _, count in found)
            spread = [
                (2 * residual * (part + 0.5) / _PARTS_OF_ROW, weight / total / _PARTS_OF_ROW)
                for residual, weight, _ in found
                for part in range(_PARTS_OF_ROW)
            ]
            self._ends[key] = _quantiles(sorted(spread))

    def _enter_ends(self, found: _Bin, run: _ListRun) -> None:
        capacity = self._load.capacities[found.shape]
        for position, have in enumerate(capacity):
            held = have - found.free[position]
            ends = self._ends.get((found.shape, position))
            if held <= 0 or ends is None:
                continue
            if held / self._units[found.shape, position] >= len(ends) - 0.5 or found.count == 1:
                _enter_parts(found, position, held, ends, run)
            else:
                _enter_nodes(found, position, held, ends, run)


def _enter_parts(
    found: _Bin, position: int, held: int, ends: Sequence[tuple[float, float]], run: _ListRun
) -> None:
    """Let each node release a part of what is held there at each of the ends."""
    share = 0.0
    released = 0
    for at, part in ends:
        share += part
        amount = round(held * min(1.0, share)) - released
        released += amount
        run.enter(at, found, ((position, amount),))


def _enter_nodes(
    found: _Bin, position: int, held: int, ends: Sequence[tuple[float, float]], run: _ListRun
) -> None:
    """Let one node after the other release all that is held there."""
    count, share, freed = found.count, 0.0, 0
    rest = found
    for at, part in ends:
        share += part
        nodes = round(count * min(1.0, share)) - freed
        if nodes <= 0:
            continue
        freed += nodes
        if nodes < rest.count:
            one = rest.divided(nodes)
            rest = rest.parts[1]
        else:
            one = rest
        run.enter(at, one, ((position, held),))


class _ListRun:
    """One schedule."""

    def __init__(self, kinds: Sequence[_WaitingKind], waits: ListedWaits) -> None:
        self._kinds, self._waits = kinds, waits
        self.left = [kind.waiting for kind in kinds]
        self.now = 0.0
        self._starts = self._entered = 0
        #: (at, number, bin, what each of its nodes releases; None: it joins).
        self._agenda: list[tuple[float, int, _Bin, Pairs | None]] = []

    def enter(self, at: float, found: _Bin, amounts: Pairs | None) -> None:
        """Enter what happens at a moment."""
        self._entered += 1
        self._agenda.append((at, self._entered, found, amounts))

    def begin(self, bins: Sequence[_Bin]) -> None:
        """Start what fits now, and keep nodes for large kinds that do not (rule 2)."""
        heapify(self._agenda)
        self._serve(_leaves(bins))
        there = _leaves(bins)
        for number, kind in enumerate(self._kinds):
            if not self.left[number] or not any(0 < fits <= _FEW for fits in kind.slots):
                continue
            hosts = [each for each in there if each.kept_for < 0 and 0 < kind.slots[each.shape] <= _FEW and not each.parts]  # fmt: skip
            if hosts:
                position = kind.needs[0][0]
                best = max(hosts, key=lambda each: each.free[position])
                kept = best.divided(1) if best.count > 1 else best
                kept.kept_for = number
                there.extend(best.parts)

    def go(self, servers: Sequence[float]) -> None:
        """Follow the agenda until nothing waits; ``servers``: of each kind, at the end of the path."""
        while any(self.left) and self._agenda and self._starts < _MOST_STARTS:
            self.now = self._agenda[0][0]
            opened: list[_Bin] = []
            while self._agenda and self._agenda[0][0] <= self.now:
                _, _, found, amounts = heappop(self._agenda)
                for leaf in _leaves((found,)):
                    if amounts is not None:
                        leaf.chunks = None
                        for position, amount in amounts:
                            leaf.free[position] += amount
                    opened.append(leaf)
            self._serve(opened)
        if any(self.left):
            self._add_rest(servers)

    def _add_rest(self, servers: Sequence[float]) -> None:
        """Add the waits of what is left: half of its work, divided by its servers."""
        seconds = sum(
            left * kind.seconds / served / 2
            for left, kind, served in zip(self.left, self._kinds, servers, strict=True)
            if served
        )
        can_go_on = bool(self._agenda)
        for number, left in enumerate(self.left):
            if left:
                wait = self.now + seconds if can_go_on and servers[number] else NEVER_SECONDS
                self._waits.add(self._kinds[number], left, min(NEVER_SECONDS, wait))

    def _serve(self, opened: list[_Bin]) -> None:
        """Start what fits on bins of which something was released."""
        for number, kind in enumerate(self._kinds):
            if not self.left[number]:
                continue
            for found in opened:
                if self._starts >= _MOST_STARTS:
                    return
                if found.parts or (kind.bound and found.is_new):
                    continue
                kept_for = found.kept_for
                if kept_for >= 0 and kept_for != number and self.left[kept_for]:
                    continue
                fits = slots_of(found.free, kind.needs)
                if fits and found.chunks is not None and kind.level is not None:
                    fits = min(fits, _chunks_of(found.chunks, kind.level))
                if fits:
                    opened.extend(self._start(number, kind, found, fits))
                    if not self.left[number]:
                        break

    def _start(self, number: int, kind: _WaitingKind, found: _Bin, fits: int) -> list[_Bin]:
        """Start as many as fit; return the bins into which that one was divided."""
        count = min(self.left[number], fits * found.count)
        full, rest = divmod(count, fits)
        ends_at = self.now + kind.seconds
        made: list[_Bin] = []
        for nodes, each in ((full, fits), (1 if rest else 0, rest)):
            if not nodes:
                continue
            if nodes < found.count:
                found.divided(nodes)
                made.extend(found.parts)
                filled, found = found.parts
            else:
                filled = found
            _take(filled, kind, each)
            released = tuple([(position, each * amount) for position, amount in kind.released])
            self._entered += 1
            heappush(self._agenda, (ends_at, self._entered, filled, released))
            self._starts += 1
        self.left[number] -= count
        self._waits.add(kind, count, self.now)
        return [each for each in made if not each.parts]


def _chunks_of(free: Counts, level: int) -> int:
    """Return how many chunks of a level the free ones have."""
    return sum(count << (each - level) for each, count in enumerate(free) if each >= level)


def _take(found: _Bin, kind: _WaitingKind, count: int) -> None:
    for position, amount in kind.needs:
        found.free[position] -= count * amount
    if found.chunks is not None and kind.level is not None:
        for _ in range(count):
            found.chunks = without(found.chunks, kind.level) or found.chunks


def _kinds(load: PoolLoad) -> list[_WaitingKind]:
    """Return what waits and some shape takes."""
    found = [
        _kind(load, row, slots)
        for row, slots in zip(load.rows, load.row_slots, strict=True)
        if row.waiting and any(slots)
    ]
    if len(found) <= _MOST_KINDS:
        return found
    found = _joined(found, lambda kind: (kind.needs, kind.bound, kind.takers))
    if len(found) > _MOST_KINDS:
        found = _joined(found, lambda kind: (kind.slots, kind.bound, kind.takers))
    work = sorted(found, key=lambda kind: -kind.waiting * kind.seconds)
    return work[:_MOST_KINDS] + _joined(work[_MOST_KINDS:], lambda kind: kind.takers)


def _kind(load: PoolLoad, row: DemandRow, slots: tuple[int, ...]) -> _WaitingKind:
    memory = 0 if row.bound else row.memory_bytes
    needs = load.fitted(row.needs, memory)[0] or ()
    level = level_of(row.needs[_GPU]) if _GPU in row.needs else None
    released = load.fitted(row.needs)[0] or ()
    return _WaitingKind(
        needs, released, row.bound, row.seconds, row.waiting, slots, load.takers(slots), level
    )


def _joined(
    kinds: Iterable[_WaitingKind], by: Callable[[_WaitingKind], object]
) -> list[_WaitingKind]:
    """Return kinds with the same key as one: that of most work, with the count of all and their mean seconds."""
    groups: dict[object, list[_WaitingKind]] = {}
    for kind in kinds:
        groups.setdefault(by(kind), []).append(kind)
    found = []
    for members in groups.values():
        count = sum(kind.waiting for kind in members)
        seconds = sum(kind.waiting * kind.seconds for kind in members) / count
        most = max(members, key=lambda kind: kind.waiting * kind.seconds)
        found.append(most._replace(waiting=count, seconds=seconds))
    return found


def _merged(places: Iterable[Place], kinds: Sequence[_WaitingKind]) -> Iterable[Place]:
    """Yield the places, those of one shape on which equally many of each kind fit as one with their means."""
    found: dict[object, list[Place]] = {}
    for place in places:
        slots = tuple(slots_of(place.free, kind.needs) for kind in kinds)
        found.setdefault((place.shape, slots, place.chunks), []).append(place)
    # Those with many nodes as they are, the others as one of each shape.
    largest = sorted(found.values(), key=lambda each: -sum(place.nodes for place in each))
    rest: dict[object, list[Place]] = {}
    for place in [place for each in largest[_MOST_PLACES:] for place in each]:
        rest.setdefault(place.shape, []).append(place._replace(chunks=None))
    for members in [*largest[:_MOST_PLACES], *rest.values()]:
        count = sum(place.nodes for place in members)
        free = tuple(
            sum(place.nodes * place.free[position] for place in members) // count
            for position in range(len(members[0].free))
        )
        yield members[0]._replace(nodes=count, free=free)


def _quantiles(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most `_PARTS` moments and their shares, for points that rise."""
    if len(points) <= _PARTS:
        return list(points)
    found: list[tuple[float, float]] = []
    at = share = 0.0
    for moment, part in points:
        at += moment * part
        share += part
        if share >= 1 / _PARTS:
            found.append((at / share, share))
            at = share = 0.0
    if share > 0:
        found.append((at / share, share))
    return found
