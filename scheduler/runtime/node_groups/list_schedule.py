"""List schedule of what waits in a pool, on nodes that are there and on those that join. Pure.

1. An action starts on one node that has all of its amounts free. Nodes that are alike are one *bin*; a start that fills some of them
   divides it. Actions that are bound to the node of their environment start on nodes that are there already.
2. When units are released, or nodes join, each kind of what waits is tried there, in the order of the rows. A kind of which a node takes
   few has one node kept for it from its first moment: it waits until that has enough, as the head of a queue does in the scheduler.
3. What runs ends in equal parts, spread evenly over twice what is left of it. Where a node runs fewer actions than there are parts, it is
   nodes that become free one after the other, and else each releases parts of what is held there.
4. At most `MOST_KINDS` kinds, `_MOST_STARTS` starts and `_MOST_PLACES` places are listed: the rest of the kinds, and of the places of a shape, are
   one with their means, the rest of the starts is work divided by servers.
5. Paths that differ from some moment on share what happens before it: a schedule goes on from there with a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from operator import mul
from typing import Final, NamedTuple

from domain.chunks import Counts, without
from scheduler.runtime.node_groups.pool_load import (
    ENDLESS,
    NodesFrom,
    Pairs,
    Place,
    PoolLoad,
    Takers,
    slots_of,
)
from scheduler.runtime.node_groups.queue_estimate import NEVER_SECONDS
from scheduler.runtime.node_groups.waiting_kinds import WaitingKind, kinds_of

_MOST_STARTS: Final = 48
#: Kinds of nodes that are there.
_MOST_PLACES: Final = 8
#: What runs ends in so many parts of each row, and of each shape.
_PARTS_OF_ROW: Final = 3
_PARTS: Final = 6
#: A kind of which an empty node takes no more is kept a node.
_FEW: Final = 4
#: Of what happens at the same moment, ends of starts are the last: their numbers begin here.
_FIRST_START: Final = 1 << 30


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

    def copied(self, known: dict[_Bin, _Bin]) -> _Bin:
        """Return a copy with copies of its parts; ``known``: those that are made."""
        found = known.get(self)
        if found is None:
            found = known[self] = _Bin(
                self.shape, self.count, self.free.copy(), self.is_new, self.chunks, self.kept_for
            )
            if self.parts:
                found.parts = [each.copied(known) for each in _leaves(self.parts)]
        return found


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

    def copied(self) -> ListedWaits:
        """Return a copy."""
        return ListedWaits(self.sums.copy(), self.drained_at.copy())

    def add(self, kind: WaitingKind, count: int, seconds: float) -> None:
        """Add actions that start after so long."""
        takers = kind.takers
        self.sums[takers] = self.sums.get(takers, 0.0) + count * seconds
        if not kind.bound and seconds >= self.drained_at.get(takers, 0.0):
            self.drained_at[takers] = seconds


class WaitList:
    """What waits in a load, prepared for schedules on several paths."""

    def __init__(self, load: PoolLoad) -> None:
        self._load = load
        self.kinds = kinds_of(load)
        self._ends: dict[tuple[int, int], list[tuple[float, float]]] = {}
        self._units: dict[tuple[int, int], float] = {}
        #: Beginnings of paths → their schedules so far.
        self._shared: dict[object, _ListRun] = {}
        self._known_ends: dict[Place, list[_PlaceEnds]] = {}
        if self.kinds:
            self._look_at_running()
            places = list(_merged(load.places, self.kinds))
            self._places = [
                [place for place in places if place.shape == shape]
                for shape in range(len(load.shapes))
            ]

    def schedule(self, path: Sequence[NodesFrom]) -> ListedWaits:
        """Return the waits with the groups' nodes over time."""
        if not self.kinds:
            return ListedWaits()
        last = self._load.all_nodes(path[-1].nodes)
        never = tuple(
            number for number, kind in enumerate(self.kinds) if not any(map(mul, kind.slots, last))
        )
        run = self._until(tuple(path), never, inf)
        run.add_rest([float(sum(map(mul, kind.slots, last))) for kind in self.kinds])
        return run.waits

    def _until(self, path: tuple[NodesFrom, ...], never: tuple[int, ...], until: float) -> _ListRun:
        """Return a schedule on a path that was followed until a moment; ``never``: kinds that no node on it will take."""
        *before, latest = path
        if before:
            key = *before, never, latest.after_seconds
            shared = self._shared.get(key)
            if shared is None:
                shared = self._shared[key] = self._until(tuple(before), never, latest.after_seconds)
            run = shared.copied()
            self._join(run, before[-1].nodes, latest)
        else:
            shared = self._shared.get((latest.nodes, never))
            if shared is None:
                shared = self._shared[latest.nodes, never] = self._begun(latest.nodes, never)
            run = shared.copied()
        run.go(until)
        return run

    def _begun(self, nodes: Sequence[int], never: Iterable[int]) -> _ListRun:
        """Return a schedule with what starts now."""
        run = _ListRun(self.kinds, ListedWaits())
        for number in never:
            kind = self.kinds[number]
            run.waits.add(kind._replace(bound=True), kind.waiting, NEVER_SECONDS)
            run.left[number] = 0
        run.begin(self._bins(nodes, run))
        return run

    def _join(self, run: _ListRun, before: Sequence[int], latest: NodesFrom) -> None:
        """Enter the nodes that join."""
        for group, (had, has) in enumerate(zip(before, latest.nodes, strict=True)):
            if has > had:
                free = list(self._load.capacities[group])
                run.enter(latest.after_seconds, _Bin(group, has - had, free, True, None), None)

    def _bins(self, nodes: Sequence[int], run: _ListRun) -> list[_Bin]:
        """Return the nodes that are there; enter what they release into the schedule."""
        load, bins = self._load, []
        for shape, places in enumerate(self._places):
            there = self._with(places, shape, nodes[shape]) if shape < load.groups else places
            for place in there:
                found = _Bin(shape, place.nodes, list(place.free), False, place.chunks)
                bins.append(found)
                ends = self._known_ends.get(place)
                if ends is None:
                    ends = self._known_ends[place] = list(self._ends_at(place))
                for each in ends:
                    _enter(found, each, run)
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
        for row, slots, pairs in zip(load.rows, load.row_slots, load.row_pairs, strict=True):
            for position, amount in pairs or () if row.running else ():
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

    def _ends_at(self, place: Place) -> Iterable[_PlaceEnds]:
        """Yield what a place releases of each resource."""
        for position, have in enumerate(self._load.capacities[place.shape]):
            held = have - place.free[position]
            ends = self._ends.get((place.shape, position))
            if held <= 0 or ends is None:
                continue
            by_parts = held / self._units[place.shape, position] >= len(ends) - 0.5
            if by_parts or place.nodes == 1:
                yield _PlaceEnds(
                    False, [(at, ((position, n),)) for at, n in _rounded(ends, held)], []
                )
                continue
            counts = [(at, n) for at, n in _rounded(ends, place.nodes) if n > 0]
            yield _PlaceEnds(
                True, [(at, ((position, held),)) for at, _ in counts], [n for _, n in counts]
            )


class _PlaceEnds(NamedTuple):
    """When what is held of one resource at a place is released."""

    #: One node after the other releases all that is held there, else each releases a part at each moment.
    by_nodes: bool
    ends: list[tuple[float, Pairs]]
    #: Nodes of each end.
    counts: list[int]


def _rounded(ends: Iterable[tuple[float, float]], total: int) -> Iterable[tuple[float, int]]:
    """Yield the moments with what of ``total`` ends at each of them."""
    share = 0.0
    ended = 0
    for at, part in ends:
        share += part
        amount = round(total * min(1.0, share)) - ended
        ended += amount
        yield at, amount


def _enter(found: _Bin, ends: _PlaceEnds, run: _ListRun) -> None:
    """Enter what a place releases, divided into the nodes that become free together."""
    if not ends.by_nodes:
        for at, released in ends.ends:
            run.enter(at, found, released)
        return
    rest = found.count - sum(ends.counts)
    counts = [*ends.counts, rest] if rest else ends.counts
    leaves = [found]
    if len(counts) > 1:
        leaves = [_Bin(found.shape, n, found.free.copy(), False, found.chunks) for n in counts]
        found.parts = leaves
    for (at, released), leaf in zip(ends.ends, leaves, strict=False):
        run.enter(at, leaf, released)


class _ListRun:
    """One schedule, followed until some moment."""

    def __init__(self, kinds: Sequence[WaitingKind], waits: ListedWaits) -> None:
        self._kinds, self.waits = kinds, waits
        self.left = [kind.waiting for kind in kinds]
        self.now = 0.0
        self._entered, self._starts = 0, 0
        #: (at, number, bin, what each of its nodes releases; None: it joins).
        self._agenda: list[tuple[float, int, _Bin, Pairs | None]] = []

    @property
    def _is_over(self) -> bool:
        return self._starts >= _MOST_STARTS or not any(self.left)

    def copied(self) -> _ListRun:
        """Return a copy that goes on by itself."""
        found = _ListRun(self._kinds, self.waits.copied())
        found.left, found.now = self.left.copy(), self.now
        found._entered, found._starts = self._entered, self._starts
        if self._is_over:  # nothing will happen to the bins
            found._agenda = self._agenda.copy()
        else:
            known: dict[_Bin, _Bin] = {}
            found._agenda = [(at, n, each.copied(known), what) for at, n, each, what in self._agenda]  # fmt: skip
        return found

    def enter(self, at: float, found: _Bin, amounts: Pairs | None) -> None:
        """Enter what happens at a moment."""
        self._entered += 1
        heappush(self._agenda, (at, self._entered, found, amounts))

    def begin(self, bins: Sequence[_Bin]) -> None:
        """Start what fits now, and keep nodes for large kinds that do not (rule 2)."""
        there = _leaves(bins)
        self._serve(there.copy())
        there = _leaves(there)
        for number, kind in enumerate(self._kinds):
            if not self.left[number]:
                continue
            hosts = {shape for shape, fits in enumerate(kind.slots) if 0 < fits <= _FEW}
            best, most = None, 0
            position = kind.needs[0][0] if hosts else 0
            for each in there if hosts else ():
                if (
                    each.shape in hosts
                    and (best is None or each.free[position] > most)
                    and each.kept_for < 0
                    and not each.parts
                ):
                    best, most = each, each.free[position]
            if best is not None:
                kept = best.divided(1) if best.count > 1 else best
                kept.kept_for = number
                there.extend(best.parts)

    def go(self, until: float) -> None:
        """Follow the agenda until nothing waits, at most to a moment, without it."""
        agenda = self._agenda
        while agenda and agenda[0][0] < until and not self._is_over:
            now = self.now = agenda[0][0]
            opened: list[_Bin] = []
            while agenda and agenda[0][0] <= now:
                _, _, found, amounts = heappop(agenda)
                for leaf in _leaves((found,)) if found.parts else (found,):
                    if amounts is not None:
                        leaf.chunks = None
                        free = leaf.free
                        for position, amount in amounts:
                            free[position] += amount
                    opened.append(leaf)
            self._serve(opened)

    def add_rest(self, servers: Sequence[float]) -> None:
        """Add the waits of what is left: half of its work, divided by its servers; ``servers``: of each kind, at the end of the path."""
        if not any(self.left):
            return
        seconds = sum(
            left * kind.seconds / served / 2
            for left, kind, served in zip(self.left, self._kinds, servers, strict=True)
            if served
        )
        can_go_on = bool(self._agenda)
        for number, left in enumerate(self.left):
            if left:
                wait = self.now + seconds if can_go_on and servers[number] else NEVER_SECONDS
                self.waits.add(self._kinds[number], left, min(NEVER_SECONDS, wait))

    def _serve(self, opened: list[_Bin]) -> None:
        """Start what fits on bins of which something was released."""
        left = self.left
        for number, kind in enumerate(self._kinds):
            if not left[number]:
                continue
            for found in opened:
                fits = _room(kind, found)
                if not fits:
                    continue
                kept_for = found.kept_for
                if kept_for >= 0 and kept_for != number and left[kept_for]:
                    continue
                if self._starts >= _MOST_STARTS:
                    return
                opened.extend(self._start(number, kind, found, fits))
                if not left[number]:
                    break

    def _start(self, number: int, kind: WaitingKind, found: _Bin, fits: int) -> Sequence[_Bin]:
        """Start as many as fit; return the bins into which that one was divided."""
        count = min(self.left[number], fits * found.count)
        full, rest = divmod(count, fits)
        made: list[_Bin] = []
        for nodes, each in ((full, fits), (1 if rest else 0, rest)):
            if not nodes:
                continue
            filled = found
            if nodes < found.count:
                filled = found.divided(nodes)
                found = found.parts[1]
                made = [*made[:-1], filled, found]
            _take(filled, kind, each)
            released = tuple([(position, each * amount) for position, amount in kind.released])
            self._starts += 1
            end = self.now + kind.seconds, _FIRST_START + self._starts, filled, released
            heappush(self._agenda, end)
        self.left[number] -= count
        self.waits.add(kind, count, self.now)
        return made


def _room(kind: WaitingKind, found: _Bin) -> int:
    """Return how many actions of a kind a node of a bin takes."""
    if found.parts or (kind.bound and found.is_new):
        return 0
    fits, free = ENDLESS, found.free
    for position, amount in kind.needs:  # as `slots_of`, whose calls would take as long
        fit = free[position] // amount
        if fit < fits:
            if fit <= 0:
                return 0
            fits = fit
    if found.chunks is not None and kind.level is not None:
        fits = min(fits, _chunks_of(found.chunks, kind.level))
    return fits


def _chunks_of(free: Counts, level: int) -> int:
    """Return how many chunks of a level the free ones have."""
    return sum(count << (each - level) for each, count in enumerate(free) if each >= level)


def _take(found: _Bin, kind: WaitingKind, count: int) -> None:
    for position, amount in kind.needs:
        found.free[position] -= count * amount
    if found.chunks is not None and kind.level is not None:
        for _ in range(count):
            found.chunks = without(found.chunks, kind.level) or found.chunks


def _merged(places: Iterable[Place], kinds: Sequence[WaitingKind]) -> Iterable[Place]:
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
