"""List schedule and queues of `scheduler.runtime.node_groups`, each path from its beginning, and each sum where it is used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from domain.chunks import Counts, without
from scheduler.runtime.node_groups import queue_estimate
from scheduler.runtime.node_groups.list_schedule import (
    _FEW,
    _MOST_STARTS,
    _PARTS_OF_ROW,
    ListedWaits,
    _chunks_of,
    _merged,
    _quantiles,
)
from scheduler.runtime.node_groups.pool_load import (
    ArrivalStream,
    NodesFrom,
    Pairs,
    Place,
    PoolLoad,
    Takers,
    slots_of,
)
from scheduler.runtime.node_groups.queue_estimate import (
    NEVER_SECONDS,
    _crowds,
    _held_up,
    _Larger,
    _wait,
)
from scheduler.runtime.node_groups.waiting_kinds import WaitingKind, kinds_of


class _PlainBin:
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
        self.parts: Sequence[_PlainBin] = ()

    def divided(self, count: int) -> _PlainBin:
        """Return ``count`` of the nodes as a bin; the others are another one, and this one is over."""
        kept = self.is_new, self.chunks, self.kept_for
        first = _PlainBin(self.shape, count, self.free.copy(), *kept)
        self.parts = first, _PlainBin(self.shape, self.count - count, self.free.copy(), *kept)
        return first


def _leaves(bins: Iterable[_PlainBin]) -> list[_PlainBin]:
    """Return what bins were divided into, and those that were not."""
    found: list[_PlainBin] = []
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


class PlainWaitList:
    """What waits in a load, prepared for schedules on several paths."""

    def __init__(self, load: PoolLoad) -> None:
        self._load = load
        self.kinds = kinds_of(load)
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
        run = _PlainRun(self.kinds, waits)
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

    def _bins(self, path: Sequence[NodesFrom], run: _PlainRun) -> list[_PlainBin]:
        """Return the nodes that are there; enter what they release and what joins into the schedule."""
        load, bins = self._load, []
        for shape in range(len(load.shapes)):
            places = [place for place in self._places if place.shape == shape]
            if shape < load.groups:
                places = self._with(places, shape, path[0].nodes[shape])
            for place in places:
                found = _PlainBin(shape, place.nodes, list(place.free), False, place.chunks)
                bins.append(found)
                self._enter_ends(found, run)
        before = path[0].nodes
        for each in path[1:]:
            for group, (had, has) in enumerate(zip(before, each.nodes, strict=True)):
                if has > had:
                    free = list(load.capacities[group])
                    run.enter(
                        each.after_seconds, _PlainBin(group, has - had, free, True, None), None
                    )
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

    def _enter_ends(self, found: _PlainBin, run: _PlainRun) -> None:
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
    found: _PlainBin, position: int, held: int, ends: Sequence[tuple[float, float]], run: _PlainRun
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
    found: _PlainBin, position: int, held: int, ends: Sequence[tuple[float, float]], run: _PlainRun
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


class _PlainRun:
    """One schedule."""

    def __init__(self, kinds: Sequence[WaitingKind], waits: ListedWaits) -> None:
        self._kinds, self._waits = kinds, waits
        self.left = [kind.waiting for kind in kinds]
        self.now = 0.0
        self._starts = self._entered = 0
        #: (at, number, bin, what each of its nodes releases; None: it joins).
        self._agenda: list[tuple[float, int, _PlainBin, Pairs | None]] = []

    def enter(self, at: float, found: _PlainBin, amounts: Pairs | None) -> None:
        """Enter what happens at a moment."""
        self._entered += 1
        self._agenda.append((at, self._entered, found, amounts))

    def begin(self, bins: Sequence[_PlainBin]) -> None:
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
            opened: list[_PlainBin] = []
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

    def _serve(self, opened: list[_PlainBin]) -> None:
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

    def _start(
        self, number: int, kind: WaitingKind, found: _PlainBin, fits: int
    ) -> list[_PlainBin]:
        """Start as many as fit; return the bins into which that one was divided."""
        count = min(self.left[number], fits * found.count)
        full, rest = divmod(count, fits)
        ends_at = self.now + kind.seconds
        made: list[_PlainBin] = []
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


def _take(found: _PlainBin, kind: WaitingKind, count: int) -> None:
    for position, amount in kind.needs:
        found.free[position] -= count * amount
    if found.chunks is not None and kind.level is not None:
        for _ in range(count):
            found.chunks = without(found.chunks, kind.level) or found.chunks


def queue_seconds(load: PoolLoad, nodes: Sequence[int]) -> dict[Takers, float]:
    """Return the sum of the waits of what arrives in a second, by class; ``nodes``: of each elastic group."""
    there = load.all_nodes(nodes)
    crowds = {
        position: _crowds(works, [have[position] * n for have, n in zip(load.capacities, there, strict=True)])
        for position, works in load.works.items()
    }  # fmt: skip
    found: dict[Takers, float] = {}
    beside = _besides(load, there)
    for stream in load.streams:
        waits = [_wait(load, stream, there, position, crowds[position]) for position in stream.uses]
        none = 0.0 if any(there[host] for host in stream.hosts) else NEVER_SECONDS
        wait = max(waits, default=none)
        if stream.bound:
            wait = min(NEVER_SECONDS, wait + _beside_larger(load, stream, there, beside))
        found[stream.takers] = found.get(stream.takers, 0.0) + stream.per_second * wait
    return found


def _besides(load: PoolLoad, there: Sequence[int]) -> dict[tuple[int, int], list[_Larger]]:
    """Return (shape, resource) → the streams that hold up smaller actions there (rule 4)."""
    found: dict[tuple[int, int], list[_Larger]] = {}
    for stream in load.streams:
        for position, units in zip(stream.uses, stream.units, strict=True):
            for host in stream.hosts:
                if stream.slots[host] > queue_estimate._FEW or not there[host]:
                    continue
                smaller = sum(
                    other.seconds * amount * _share(load, other, there, host, position)
                    for other in load.streams
                    for used, amount in zip(other.uses, other.units, strict=True)
                    if used == position and amount < units and other.slots[host]
                )
                # Of one node: what the smaller ones keep busy, and what is left to them.
                busy = smaller / there[host]
                left = max(0.0, load.capacities[host][position] - units)
                if busy > left:
                    share = _share(load, stream, there, host, position) / there[host]
                    wait = share * _held_up(load, stream) * (1.0 - left / busy)
                    found.setdefault((host, position), []).append(_Larger(units, wait))
    return found


def _share(
    load: PoolLoad, stream: ArrivalStream, there: Sequence[int], host: int, position: int
) -> float:
    """Return the share of a stream that runs on the nodes of one shape."""
    total = sum(there[each] * load.capacities[each][position] for each in stream.hosts)
    return there[host] * load.capacities[host][position] / total if total else 0.0


def _beside_larger(
    load: PoolLoad, stream: ArrivalStream, there: Sequence[int], beside: Mapping[tuple[int, int], Sequence[_Larger]]
) -> float:  # fmt: skip
    """Return the mean wait of a bound action while larger ones have its node."""
    if not beside:
        return 0.0
    return sum(
        larger.wait * _share(load, stream, there, host, position)
        for position, units in zip(stream.uses, stream.units, strict=True)
        for host in stream.hosts
        for larger in beside.get((host, position), ())
        if larger.units > units
    )
