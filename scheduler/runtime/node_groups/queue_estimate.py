"""Estimate of the wait of what arrives, when nothing waits before it: M/G/c over shapes of nodes. Pure.

1. ArrivingWork spreads over the shapes that take it, most restricted first, so that their busy shares become equal as far as that goes: as the
   scheduler gives an action to the node with the least load.
2. An action waits as in a queue with as many servers as actions of its size fit on these nodes, each of them on one node, or of the mean
   size if that is larger (Sakasegawa's approximation of M/G/c). A bound action waits for the servers of one node.
3. A trajectory has one action at a time, so bound arrivals are smoother than Poisson's: their peakedness is 1 − the share of the time in
   which it has an action there (Hayward's approximation).
4. A bound action also waits while a larger one has so much of its node that the rest is too little for what the smaller ones there do. Its
   trajectory submits no other one meanwhile.
5. Above `_FULL` the queue grows for as long as the horizon.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from typing import Final, NamedTuple

from scheduler.runtime.node_groups.pool_load import ArrivalStream, ArrivingWork, PoolLoad, Takers

#: What arrives within so long counts.
HORIZON_SECONDS: Final = 300.0
#: Of an action for which no node is there, or will be.
NEVER_SECONDS: Final = 3600.0
#: Share of the units from which on the formula of queues, which has no end there, goes on as a straight line.
_FULL: Final = 0.97
#: A stream is of large actions if a node takes no more of them at once.
_FEW: Final = 4


class _Crowd(NamedTuple):
    """What the nodes of some shapes have to do for one resource."""

    busy: float
    #: Amount of the mean action, its seconds, and (1 + the squared coefficient of variation of durations) / 2.
    units: float
    seconds: float
    spread: float


class QueueEstimate:
    """The estimate for one load: what does not depend on the number of nodes is found once."""

    def __init__(self, load: PoolLoad) -> None:
        self._load = load
        #: (Shapes that take a stream, resource): the streams that spread over them have equal shares.
        self._spreads: dict[_Spread, None] = {}
        self._large = list(self._large_streams())
        self._loads = {
            position: sum(work.load for work in works.values())
            for position, works in load.works.items()
        }

    def seconds(self, nodes: Sequence[int]) -> dict[Takers, float]:
        """Return the sum of the waits of what arrives in a second, by class; ``nodes``: of each elastic group."""
        load = self._load
        there = load.all_nodes(nodes)
        crowds = {
            position: _crowds(works, [have[position] * n for have, n in zip(load.capacities, there, strict=True)])
            for position, works in load.works.items()
        }  # fmt: skip
        found: dict[Takers, float] = {}
        shares = self._shares(there) if self._large else {}
        beside = self._besides(there, shares)
        for stream in load.streams:
            waits = [
                _wait(load, stream, there, position, crowds[position]) for position in stream.uses
            ]
            none = 0.0 if any(there[host] for host in stream.hosts) else NEVER_SECONDS
            wait = max(waits, default=none)
            if stream.bound and beside:
                wait = min(NEVER_SECONDS, wait + _beside_larger(stream, shares, beside))
            found[stream.takers] = found.get(stream.takers, 0.0) + stream.per_second * wait
        return found

    def busy_share(self, nodes: Sequence[int]) -> float:
        """Return the largest share of a resource that what arrives keeps busy."""
        there = self._load.all_nodes(nodes)
        most = 0.0
        for position, busy in self._loads.items():
            amount = sum(have[position] * n for have, n in zip(self._load.capacities, there, strict=True))  # fmt: skip
            most = max(most, busy / max(1, amount))
        return most

    def _large_streams(self) -> Iterable[_LargeStream]:
        """Yield the streams that may hold up smaller actions, by resource (rule 4)."""
        load = self._load
        for stream in load.streams:
            few = [host for host in stream.hosts if stream.slots[host] <= _FEW]
            for position, units in zip(stream.uses, stream.units, strict=True) if few else ():
                smaller = [
                    (other.seconds * amount, (other.hosts, position))
                    for other in load.streams
                    for used, amount in zip(other.uses, other.units, strict=True)
                    if used == position and amount < units
                ]
                spread = stream.hosts, position
                self._spreads.update(dict.fromkeys([spread, *(each for _, each in smaller)]))
                yield _LargeStream(few, spread, units, _held_up(load, stream), smaller)

    def _shares(self, there: Sequence[int]) -> _Shares:
        """Return which share of a stream runs on the nodes of each shape."""
        found = {}
        for hosts, position in self._spreads:
            have = [there[host] * self._load.capacities[host][position] for host in hosts]
            total = sum(have)
            found[hosts, position] = {
                host: amount / total if total else 0.0
                for host, amount in zip(hosts, have, strict=True)
            }
        return found

    def _besides(
        self, there: Sequence[int], shares: _Shares
    ) -> dict[tuple[int, int], list[_Larger]]:
        """Return (shape, resource) → the streams that hold up smaller actions there (rule 4)."""
        found: dict[tuple[int, int], list[_Larger]] = {}
        for hosts, spread, units, held_up, smaller in self._large:
            position = spread[1]
            for host in hosts:
                if not there[host]:
                    continue
                kept_busy = [seconds * shares[other][host] for seconds, other in smaller if host in shares[other]]  # fmt: skip
                # Of one node: what the smaller ones keep busy, and what is left to them.
                busy = sum(kept_busy) / there[host]
                left = max(0.0, self._load.capacities[host][position] - units)
                if busy > left:
                    share = shares[spread][host] / there[host]
                    wait = share * held_up * (1.0 - left / busy)
                    found.setdefault((host, position), []).append(_Larger(units, wait))
        return found


def _wait(
    load: PoolLoad, stream: ArrivalStream, there: Sequence[int], position: int, crowds: Mapping[tuple[int, ...], _Crowd]
) -> float:  # fmt: skip
    crowd = crowds.get(stream.hosts)
    if crowd is None:
        return NEVER_SECONDS
    nodes = 0
    servers = 0.0
    for host in stream.hosts:
        if number := there[host]:
            nodes += number
            size = load.capacities[host][position] / crowd.units
            servers += number * min(size, stream.slots[host])
    if stream.bound:
        servers = max(1.0, servers / nodes) / load.peakedness
    steady = _sakasegawa(min(crowd.busy, _FULL), max(1.0, servers))
    growing = HORIZON_SECONDS / 2 * max(0.0, 1.0 - _FULL / crowd.busy) if crowd.busy else 0.0
    return min(NEVER_SECONDS, steady * crowd.seconds * crowd.spread + growing)


#: The shapes that take a stream, and a resource.
_Spread = tuple[tuple[int, ...], int]
#: Spread → shape → share of the streams that runs there.
_Shares = Mapping[_Spread, Mapping[int, float]]


class _LargeStream(NamedTuple):
    """A stream of which a node takes few actions, for one resource."""

    #: Shapes whose nodes take few.
    hosts: list[int]
    spread: _Spread
    units: float
    held_up: float
    #: What smaller actions keep busy of the resource, and where.
    smaller: list[tuple[float, _Spread]]


class _Larger(NamedTuple):
    """A stream of which a node takes few actions, on the nodes of one shape."""

    units: float
    #: Sum of the waits that its actions of a second cause to each smaller action of one node.
    wait: float


def _held_up(load: PoolLoad, stream: ArrivalStream) -> float:
    """Return the waits that the larger actions of a second cause: those of what arrives meanwhile, one action of each trajectory."""
    half = stream.squares / 2
    if not load.cycle_seconds or not half:
        return half
    most = load.cycle_seconds * stream.seconds
    return half * most / (half + most)


def _beside_larger(
    stream: ArrivalStream, shares: _Shares, beside: Mapping[tuple[int, int], Sequence[_Larger]]
) -> float:
    """Return the mean wait of a bound action while larger ones have its node."""
    return sum(
        larger.wait * shares[stream.hosts, position][host]
        for position, units in zip(stream.uses, stream.units, strict=True)
        for host in stream.hosts
        for larger in beside.get((host, position), ())
        if larger.units > units
    )


def _crowds(
    works: Mapping[tuple[int, ...], ArrivingWork], amounts: Sequence[int]
) -> dict[tuple[int, ...], _Crowd]:
    """Return what each set of hosts has to do; without those that have no node."""
    totals = {
        hosts: total for hosts in works if (total := sum(amounts[host] for host in hosts)) > 0
    }
    shares = _levels(works, amounts, totals)
    found = {}
    for hosts, total in totals.items():
        rate = units = load = squares = 0.0
        for others, others_total in totals.items():
            if others is hosts:
                part = 1.0
            elif not (common := [host for host in others if host in hosts]):
                continue
            else:
                part = sum(amounts[host] for host in common) / others_total
            work = works[others]
            rate += part * work.rate
            units += part * work.units
            load += part * work.load
            squares += part * work.squares
        busy = sum(shares[host] * amounts[host] for host in hosts) / total
        if not units:  # none of those that share the nodes arrive
            continue
        seconds = load / units
        # Means of families hide the spread within them: at least that of an exponential distribution.
        spread = max(1.0, squares / rate / (2 * seconds**2))
        found[hosts] = _Crowd(busy, units / rate, seconds, spread)
    return found


def _levels(
    works: Mapping[tuple[int, ...], ArrivingWork],
    amounts: Sequence[int],
    totals: Mapping[tuple[int, ...], int],
) -> list[float]:
    """Return the busy share of each shape, filled as water is (rule 1)."""
    shares = [0.0] * len(amounts)
    for hosts in sorted(totals, key=totals.__getitem__):
        left = works[hosts].load
        rising = sorted((host for host in hosts if amounts[host]), key=shares.__getitem__)
        filled = 0
        for number, host in enumerate(rising):
            filled += amounts[host]
            above = shares[rising[number + 1]] if number + 1 < len(rising) else float("inf")
            room = (above - shares[host]) * filled
            step = min(left, room) / filled
            for each in rising[: number + 1]:
                shares[each] += step
            left -= min(left, room)
            if left <= 0:
                break
    return shares


def _sakasegawa(busy: float, servers: float) -> float:
    """Return the mean wait of M/M/c, in mean durations."""
    return float(busy ** (sqrt(2 * (servers + 1)) - 1) / (servers * (1 - busy)))
