"""PoolLoad: what a pool has to serve, and on nodes of which shapes. Pure.

An action runs on one node. So all figures are per *shape* of nodes: how many actions of a kind one empty node takes (`slots`), which is 0 where
its cores, its memory or its GPUs are too few. The first shapes are those of the pool's elastic groups, the others those of its other
nodes, whose number is fixed. Actions are *alike* where every shape takes equally many of them; a *class* is the set of groups
whose nodes take an action at all. Amounts are lists over `kinds`.

`ArrivalRates` says what arrives, from what ends: over a while, as many arrive as end (Little's law). A rate is a mean over about
`RATE_SECONDS`, and over as long as `_ENDS` ends take where that is longer: one build that runs does not say that builds arrive all the time.
What was not seen before a kind's first action counts as none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import exp, floor, log2
from typing import Final, NamedTuple

from contract.pool_demands import DemandRow
from domain.chunks import Counts

#: Of an action that takes nothing.
ENDLESS: Final = 10**6
_LEAST_PEAKEDNESS: Final = 0.2
_MEMORY: Final = "memory"
#: Rates are means over about so long, at least and at most.
RATE_SECONDS: Final = 120.0
_LONGEST_SECONDS: Final = 1800.0
_ENDS: Final = 8.0
_LEAST_RATE: Final = 1e-6

Amounts = Mapping[str, int]
#: (Position in `kinds`, amount) of what an action takes.
Pairs = tuple[tuple[int, int], ...]
#: Positions of the elastic groups whose nodes take an action.
Takers = tuple[int, ...]


class ArrivingActions(NamedTuple):
    """Actions of one kind that arrive."""

    needs: Amounts
    bound: bool
    seconds: float
    per_second: float


class NodesFrom(NamedTuple):
    """Each elastic group has so many nodes from a moment on."""

    after_seconds: float
    nodes: tuple[int, ...]


class Place(NamedTuple):
    """Nodes that are there, with equal amounts free."""

    shape: int
    nodes: int
    #: Over the kinds of the load, on each of them.
    free: tuple[int, ...]
    #: Free chunks of GPUs on each of them; None: not known.
    chunks: Counts | None = None


class ArrivalStream(NamedTuple):
    """Arriving actions that are alike."""

    #: By shape.
    slots: tuple[int, ...]
    #: Shapes that take them.
    hosts: tuple[int, ...]
    takers: Takers
    bound: bool
    #: Positions in `kinds`, memory left out, and the mean amount of each.
    uses: tuple[int, ...]
    units: tuple[float, ...]
    per_second: float
    #: Sums over the arrivals of a second: of durations, and of their squares.
    seconds: float
    squares: float


class ArrivingWork(NamedTuple):
    """Sums over what arrives for one resource and the same hosts, by second."""

    rate: float = 0.0
    units: float = 0.0
    load: float = 0.0
    squares: float = 0.0


def slots_of(have: Sequence[int], needs: Pairs) -> int:
    """Return how many actions fit into the amounts that one node has."""
    most = ENDLESS
    for position, amount in needs:
        fits = have[position] // amount
        if fits < most:
            if fits <= 0:
                return 0
            most = fits
    return most


@dataclass(frozen=True)
class PoolLoad:
    """What a pool has to serve, and with which nodes."""

    rows: Sequence[DemandRow]
    arrivals: Sequence[ArrivingActions]
    #: Of one node: first those of the elastic groups. One without memory: what it has is not known, and enough.
    shapes: Sequence[Amounts]
    #: How many of them are of elastic groups.
    groups: int = 1
    #: Nodes of each of the other shapes.
    others: tuple[int, ...] = ()
    #: Nodes that are there, of all shapes.
    places: Sequence[Place] = ()
    trajectories: int = 0

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The resources of the shapes."""
        return tuple(sorted({kind for shape in self.shapes for kind in shape}))

    @cached_property
    def capacities(self) -> list[tuple[int, ...]]:
        """Of one node of each shape."""
        return [self.vector(shape) for shape in self.shapes]

    def vector(self, amounts: Amounts) -> tuple[int, ...]:
        """Return amounts over `kinds`; memory that is not known is endless."""
        return tuple(amounts.get(kind, ENDLESS**3 if kind == _MEMORY else 0) for kind in self.kinds)

    @cached_property
    def _known(self) -> dict[object, tuple[Pairs | None, tuple[int, ...]]]:
        """What was asked for before: rows differ in durations more than in amounts."""
        return {}

    def fitted(self, needs: Amounts, memory_bytes: int = 0) -> tuple[Pairs | None, tuple[int, ...]]:
        """Return what an action takes over `kinds` (None: something that no shape has), and how many an empty node of each shape takes."""
        key = (*needs.items(), memory_bytes)
        found = self._known.get(key)
        if found is None:
            pairs = self._pairs(needs, memory_bytes)
            slots = (slots_of(have, pairs) for have in self.capacities) if pairs is not None else ()
            found = self._known[key] = pairs, tuple(slots) or (0,) * len(self.shapes)
        return found

    def _pairs(self, needs: Amounts, memory_bytes: int) -> Pairs | None:
        found = []
        for kind, amount in (*needs.items(), (_MEMORY, memory_bytes)):
            if amount <= 0 or (kind == _MEMORY and kind not in self.kinds):
                continue
            if kind not in self.kinds:
                return None
            found.append((self.kinds.index(kind), amount))
        return tuple(found)

    def takers(self, slots: tuple[int, ...]) -> Takers:
        """Return the elastic groups whose nodes take an action with these slots."""
        key = slots[: self.groups]
        found = self._known_takers.get(key)
        if found is None:
            found = self._known_takers[key] = tuple(group for group, fits in enumerate(key) if fits)
        return found

    @cached_property
    def _known_takers(self) -> dict[tuple[int, ...], Takers]:
        return {}

    def all_nodes(self, nodes: Sequence[int]) -> tuple[int, ...]:
        """Return the nodes of all shapes, with so many of each elastic group."""
        return (*nodes, *self.others)

    @cached_property
    def row_slots(self) -> list[tuple[int, ...]]:
        """The slots of each row."""
        return [self.fitted(row.needs, row.memory_bytes)[1] for row in self.rows]

    @cached_property
    def row_pairs(self) -> list[Pairs | None]:
        """What an action of each row takes, without the memory of its environment."""
        return [self.fitted(row.needs)[0] for row in self.rows]

    @cached_property
    def waiting(self) -> dict[Takers, tuple[int, float]]:
        """Class → how many wait, and the sum of their durations; without those that no shape takes."""
        found: dict[Takers, tuple[int, float]] = {}
        for row, slots in zip(self.rows, self.row_slots, strict=True):
            if row.waiting and any(slots):
                takers = self.takers(slots)
                count, seconds = found.get(takers, (0, 0.0))
                found[takers] = count + row.waiting, seconds + row.waiting * row.seconds
        return found

    @cached_property
    def peakedness(self) -> float:
        """Of bound arrivals: variance of the number of busy servers to its mean, without a limit."""
        busy = sum(each.per_second * each.seconds for each in self.arrivals if each.bound)
        return max(_LEAST_PEAKEDNESS, 1.0 - busy / self.trajectories) if self.trajectories else 1.0

    @cached_property
    def cycle_seconds(self) -> float:
        """Of a trajectory, from one action to the next; 0: it is not known."""
        rate = sum(each.per_second for each in self.arrivals if each.bound)
        return self.trajectories / rate if rate else 0.0

    @cached_property
    def _placed(self) -> list[tuple[ArrivingActions, Pairs, tuple[int, ...]]]:
        """Arrivals that some shape takes, with what they use and their slots."""
        found = []
        for each in self.arrivals:
            pairs, slots = self.fitted(each.needs)
            if pairs is not None and any(slots):
                found.append((each, pairs, slots))
        return found

    @cached_property
    def streams(self) -> list[ArrivalStream]:
        """The arrivals, those that are alike together."""
        members: dict[object, list[tuple[ArrivingActions, Pairs, tuple[int, ...]]]] = {}
        for placed in self._placed:
            each, pairs, slots = placed
            uses = tuple(position for position, _ in pairs)
            members.setdefault((slots, each.bound, uses), []).append(placed)
        return [self._stream(found) for found in members.values()]

    def _stream(
        self, members: Sequence[tuple[ArrivingActions, Pairs, tuple[int, ...]]]
    ) -> ArrivalStream:
        first, pairs, slots = members[0]
        rate = sum(each.per_second for each, _, _ in members)
        units = [0.0] * len(pairs)
        for each, amounts, _ in members:
            for number, (_, amount) in enumerate(amounts):
                units[number] += each.per_second * amount / rate
        return ArrivalStream(
            slots, _hosts(slots), self.takers(slots), first.bound, tuple(position for position, _ in pairs),
            tuple(units), rate,
            sum(each.per_second * each.seconds for each, _, _ in members),
            sum(each.per_second * each.seconds**2 for each, _, _ in members),
        )  # fmt: skip

    @cached_property
    def arriving(self) -> dict[Takers, tuple[float, float]]:
        """Class → actions that arrive each second, and the sum of their durations."""
        found: dict[Takers, tuple[float, float]] = {}
        for each, _, slots in self._placed:
            takers = self.takers(slots)
            rate, seconds = found.get(takers, (0.0, 0.0))
            found[takers] = rate + each.per_second, seconds + each.per_second * each.seconds
        return found

    @cached_property
    def works(self) -> dict[int, dict[tuple[int, ...], ArrivingWork]]:
        """Resource → hosts → what arrives there."""
        found: dict[int, dict[tuple[int, ...], ArrivingWork]] = {}
        for each, pairs, slots in self._placed:
            hosts, rate = _hosts(slots), each.per_second
            for position, amount in pairs:
                of = found.setdefault(position, {})
                had = of.get(hosts, ArrivingWork())
                of[hosts] = ArrivingWork(
                    had.rate + rate,
                    had.units + rate * amount,
                    had.load + rate * amount * each.seconds,
                    had.squares + rate * each.seconds**2,
                )
        return found


def _hosts(slots: Sequence[int]) -> tuple[int, ...]:
    return tuple(shape for shape, fits in enumerate(slots) if fits)


@dataclass
class _Rate:
    needs: Mapping[str, int]
    bound: bool
    seconds: float
    sum: float = 0.0
    #: Of the looks that are in the sum: 1 once they are many.
    weight: float = 0.0

    @property
    def per_second(self) -> float:
        return self.sum / self.weight if self.weight else 0.0

    def follow(self, ending_per_second: float, passed: float) -> None:
        """Follow what was seen at a look."""
        rate = max(self.per_second, ending_per_second)
        memory = min(_LONGEST_SECONDS, max(RATE_SECONDS, _ENDS / rate)) if rate else RATE_SECONDS
        share = 1.0 - exp(-passed / memory)
        self.sum += share * (ending_per_second - self.sum)
        self.weight += share * (1.0 - self.weight)


@dataclass
class ArrivalRates:
    """Of one pool."""

    #: By kind of row.
    _rates: dict[tuple[object, ...], _Rate] = field(default_factory=dict)
    _began_at: float | None = None
    _looked_at: float = 0.0

    def learn(self, rows: Iterable[DemandRow], now: float) -> None:
        """Follow what runs."""
        if self._began_at is None:
            self._began_at = now - RATE_SECONDS
            self._looked_at = self._began_at
        passed, self._looked_at = now - self._looked_at, now
        before = now - passed - self._began_at
        ending: dict[tuple[object, ...], float] = {}
        for row in rows:
            if not row.running:
                continue
            key = (*sorted(row.needs.items()), row.bound, floor(log2(row.seconds)))
            ending[key] = ending.get(key, 0.0) + row.ending_per_second
            if key not in self._rates:
                found = self._rates[key] = _Rate(row.needs, row.bound, row.seconds)
                memory = max(RATE_SECONDS, _ENDS / max(row.ending_per_second, _LEAST_RATE))
                found.weight = 1.0 - exp(-before / min(_LONGEST_SECONDS, memory))
            self._rates[key].seconds = row.seconds
        for key, rate in list(self._rates.items()):
            rate.follow(ending.get(key, 0.0), passed)
            if rate.sum < _LEAST_RATE:
                del self._rates[key]

    def arrivals(self) -> list[ArrivingActions]:
        """Return what arrives."""
        return [
            ArrivingActions(each.needs, each.bound, each.seconds, each.per_second)
            for each in self._rates.values()
            if each.per_second > _LEAST_RATE
        ]
