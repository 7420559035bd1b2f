"""Estimate of the mean ACT of a pool with a number of nodes. Pure.

Two parts are added up, for what waits now and for what arrives within `HORIZON_SECONDS`.
1. What waits is scheduled as a list: each row starts as many of its actions as fit, when units are released and when nodes join.
   Actions that are bound to the node of their environment start on nodes that are there already.
2. What arrives waits as in a queue with Poisson arrivals (Sakasegawa's approximation of M/G/c): a bound action at the servers
   of one node, another one at those of all. A trajectory has one action at a time, so its arrivals are smoother than Poisson's: their
   peakedness is 1 − the share of the time in which it has an action there (Hayward's approximation). Above `_FULL` the queue
   grows for as long as the horizon.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heapify, heappop, heappush
from math import sqrt
from typing import Final, NamedTuple

from contract.pool_demands import DemandRow

#: What arrives within so long counts.
HORIZON_SECONDS: Final = 300.0
#: Of an action for which no node is there, or will be.
_NEVER_SECONDS: Final = 3600.0
#: Share of the units from which on the formula of queues, which has no end there, goes on as a straight line.
_FULL: Final = 0.97
_LEAST_PEAKEDNESS: Final = 0.2
#: Starts of a schedule, at most; the rest is work divided by units.
_MOST_BATCHES: Final = 200
#: Rows that run end in so many equal parts, evenly spread.
_PARTS: Final = 3

Amounts = Mapping[str, int]


class ArrivingActions(NamedTuple):
    """Actions of one kind that arrive."""

    needs: Amounts
    bound: bool
    seconds: float
    per_second: float


class NodesFrom(NamedTuple):
    """The group has so many nodes from a moment on."""

    after_seconds: float
    nodes: int


@dataclass(frozen=True)
class PoolLoad:
    """What a pool has to serve, and with which nodes."""

    rows: Sequence[DemandRow]
    arrivals: Sequence[ArrivingActions]
    #: Of one node of the group.
    shape: Amounts
    #: Of all other nodes of the pool.
    others: Amounts = field(default_factory=dict)
    memory_held: int = 0
    trajectories: int = 0

    @cached_property
    def peakedness(self) -> float:
        """Of bound arrivals: variance of the number of busy servers to its mean, without a limit."""
        busy = sum(each.per_second * each.seconds for each in self.arrivals if each.bound)
        return max(_LEAST_PEAKEDNESS, 1.0 - busy / self.trajectories) if self.trajectories else 1.0

    @property
    def is_idle(self) -> bool:
        """Nothing waits, and nothing arrives."""
        return not self.arrivals and not any(row.waiting for row in self.rows)

    def amount(self, resource: str, nodes: int) -> int:
        """Return what the pool has of ``resource`` with so many nodes of the group."""
        return self.others.get(resource, 0) + nodes * self.shape.get(resource, 0)

    @cached_property
    def per_second(self) -> float:
        """Actions that arrive each second."""
        return sum(each.per_second for each in self.arrivals)

    @cached_property
    def waves(self) -> list[_Wave]:
        """The arriving load on each resource."""
        return [
            found
            for resource, shape in self.shape.items()
            if shape and resource != "memory" and (found := _wave(resource, shape, self.arrivals))
        ]


class _Wave(NamedTuple):
    """The load that arrives on one resource."""

    resource: str
    #: Amount that is busy on the mean, and that one action takes.
    load: float
    units: float
    mean_seconds: float
    #: (1 + the squared coefficient of variation of durations) / 2.
    spread: float
    bound: float
    servers_of_node: float


def _wave(resource: str, shape: int, arrivals: Sequence[ArrivingActions]) -> _Wave | None:
    using = [each for each in arrivals if each.needs.get(resource, 0) > 0]
    rate = sum(each.per_second for each in using)
    if rate <= 0:
        return None
    units = sum(each.per_second * each.needs[resource] for each in using) / rate
    load = sum(each.per_second * each.needs[resource] * each.seconds for each in using)
    seconds = load / (rate * units)
    squares = sum(each.per_second * each.seconds**2 for each in using) / rate
    bound = sum(each.per_second for each in using if each.bound) / rate
    # Means of families hide the spread within them: at least that of an exponential distribution.
    spread = max(1.0, squares / (2 * seconds**2))
    return _Wave(resource, load, units, seconds, spread, bound, max(1.0, shape / units))


def mean_act(load: PoolLoad, path: Sequence[NodesFrom]) -> float:
    """Return the mean seconds from submission to end of what waits and arrives; 0 if that is nothing.

    ``path``: the group's nodes over time, by rising moments; the first is now.
    """
    waiting = sum(row.waiting for row in load.rows)
    arriving = load.per_second * HORIZON_SECONDS
    if waiting + arriving <= 0:
        return 0.0
    waits, drained_at = _schedule(load, path)
    total = waits + sum(row.waiting * row.seconds for row in load.rows)
    # What arrives before the last of them has started waits behind them.
    busy = max((wave.load / max(1, _last(load, wave, path)) for wave in load.waves), default=0.0)
    behind = min(HORIZON_SECONDS, drained_at / max(1.0 - busy, 0.03))
    total += load.per_second * behind * drained_at / 2
    total += HORIZON_SECONDS * sum(each.per_second * each.seconds for each in load.arrivals)
    for each, after in zip(path, (*path[1:], NodesFrom(HORIZON_SECONDS, 0)), strict=True):
        seconds = min(after.after_seconds, HORIZON_SECONDS) - each.after_seconds
        total += load.per_second * max(0.0, seconds) * queue_seconds(load, each.nodes)
    return total / (waiting + arriving)


def _last(load: PoolLoad, wave: _Wave, path: Sequence[NodesFrom]) -> int:
    return load.amount(wave.resource, path[-1].nodes)


def queue_seconds(load: PoolLoad, nodes: int) -> float:
    """Return the mean wait of what arrives, with so many nodes, when nothing waits before it."""
    peakedness = load.peakedness
    waits = (
        _wave_seconds(wave, load.amount(wave.resource, nodes), peakedness) for wave in load.waves
    )
    return max(waits, default=0.0)


def _wave_seconds(wave: _Wave, amount: int, peakedness: float) -> float:
    if amount <= 0:
        return _NEVER_SECONDS
    busy = wave.load / amount
    of_node = _sakasegawa(min(busy, _FULL), wave.servers_of_node / peakedness)
    of_all = _sakasegawa(min(busy, _FULL), max(1.0, amount / wave.units))
    steady = wave.bound * of_node + (1.0 - wave.bound) * of_all
    growing = HORIZON_SECONDS / 2 * max(0.0, 1.0 - _FULL / busy)
    return min(_NEVER_SECONDS, steady * wave.mean_seconds * wave.spread + growing)


def _sakasegawa(busy: float, servers: float) -> float:
    """Return the mean wait of M/M/c, in mean durations."""
    return float(busy ** (sqrt(2 * (servers + 1)) - 1) / (servers * (1 - busy)))


class _Free:
    """What is free over time, on nodes that are there and on those that join."""

    def __init__(self, load: PoolLoad, path: Sequence[NodesFrom]) -> None:
        kinds = {*load.shape, *load.others}
        self.here = {kind: load.amount(kind, path[0].nodes) for kind in kinds}
        if "memory" in self.here:
            self.here["memory"] -= load.memory_held
        for row in load.rows:
            if row.running:
                for kind, amount in row.needs.items():
                    self.here[kind] = self.here.get(kind, 0) - row.running * amount
        self.new = dict.fromkeys(kinds, 0)

    def most(self, row: DemandRow) -> tuple[int, int]:
        """Return how many actions of ``row`` fit, on nodes that are there and on new ones."""
        needs = _needs_of(row)
        here = _times(self.here, needs, row.waiting)
        return here, 0 if row.bound else _times(self.new, needs, row.waiting)

    def take(self, amounts: dict[str, int], row: DemandRow, count: int) -> None:
        for kind, amount in _needs_of(row).items():
            if kind in amounts:
                amounts[kind] -= count * amount


def _needs_of(row: DemandRow) -> dict[str, int]:
    return {**row.needs, "memory": row.memory_bytes} if row.memory_bytes else row.needs


def _times(free: Amounts, needs: Amounts, most: int) -> int:
    if not any(amount > 0 for amount in free.values()):
        return 0
    for kind, amount in needs.items():
        # Memory of a group that does not declare it is not known.
        if amount > 0 and (kind in free or kind != "memory"):
            most = min(most, max(0, free.get(kind, 0)) // amount)
    return most


class _End(NamedTuple):
    at: float
    number: int
    #: What is released, and whether on new nodes.
    amounts: dict[str, int]
    new: bool


def _schedule(load: PoolLoad, path: Sequence[NodesFrom]) -> tuple[float, float]:
    """Return the sum of the waits of what waits, and when the last unbound one of it starts."""
    left = {number: row.waiting for number, row in enumerate(load.rows) if row.waiting}
    if not left:
        return 0.0, 0.0
    free, ends = _Free(load, path), _ends(load, path)
    waits = now = drained_at = 0.0
    batches = 0
    while left and batches < _MOST_BATCHES:
        for number in list(left):
            row = load.rows[number]
            for new, amounts, fits in zip(
                (False, True), (free.here, free.new), free.most(row), strict=True
            ):
                count = min(fits, left.get(number, 0))
                if not count:
                    continue
                free.take(amounts, row, count)
                # The memory of an environment stays held.
                released = {kind: count * amount for kind, amount in row.needs.items()}
                batches += 1
                number_of_end = len(load.rows) * _PARTS + batches
                heappush(ends, _End(now + row.seconds, number_of_end, released, new))
                waits += count * now
                drained_at = drained_at if row.bound else now
                left[number] -= count
                if not left[number]:
                    del left[number]
        if not left:
            break
        if not ends:
            return waits + _rest(load, left, path, now), _NEVER_SECONDS
        now = _release(ends, free)
    if not left:
        return waits, drained_at
    return waits + _rest(load, left, path, now), now + 2 * _rest_seconds(load, left, path)


def _ends(load: PoolLoad, path: Sequence[NodesFrom]) -> list[_End]:
    """Return when units are released by what runs, and when nodes join or leave."""
    ends = []
    for number, row in enumerate(load.rows):
        held = {kind: row.running * amount for kind, amount in row.needs.items()}
        for part in range(_PARTS if row.running else 0):
            released = {
                kind: amount * (part + 1) // _PARTS - amount * part // _PARTS
                for kind, amount in held.items()
            }
            at = 2 * row.residual_seconds * (part + 0.5) / _PARTS
            ends.append(_End(at, number * _PARTS + part, released, False))
    nodes = path[0].nodes
    for number, each in enumerate(path[1:]):
        joins = {kind: (each.nodes - nodes) * amount for kind, amount in load.shape.items()}
        nodes = each.nodes
        ends.append(_End(each.after_seconds, -1 - number, joins, True))
    heapify(ends)
    return ends


def _release(ends: list[_End], free: _Free) -> float:
    """Release what is released next; return when that is."""
    now = ends[0].at
    while ends and ends[0].at <= now:
        end = heappop(ends)
        amounts = free.new if end.new else free.here
        for kind, amount in end.amounts.items():
            amounts[kind] = amounts.get(kind, 0) + amount
    return now


def _rest(load: PoolLoad, left: Mapping[int, int], path: Sequence[NodesFrom], now: float) -> float:
    """Return the sum of the waits of what is left."""
    seconds = _rest_seconds(load, left, path)
    return sum(left.values()) * min(_NEVER_SECONDS, now + seconds)


def _rest_seconds(load: PoolLoad, left: Mapping[int, int], path: Sequence[NodesFrom]) -> float:
    """Return the mean wait of what is left: half of its work, divided by the units."""
    work: dict[str, float] = {}
    for number, count in left.items():
        row = load.rows[number]
        for kind, amount in row.needs.items():
            work[kind] = work.get(kind, 0.0) + count * amount * row.seconds
    return max(
        (
            need / (2 * amount)
            if (amount := load.amount(kind, path[-1].nodes)) > 0
            else _NEVER_SECONDS
            for kind, need in work.items()
        ),
        default=_NEVER_SECONDS,
    )
