"""Sharing: how many rows each replica sends, so that the busiest sender has the least to carry.

What a rank receives is fixed by the target layout; which of several replicas sends it is not. A *demand* is a number of rows that any of its
*candidates* may send. Demands are filled in turn, each levelling the loads of its candidates, smallest sets first: where sets are nested or
disjoint, as those of one mesh are, that is the optimum at once. Otherwise the sweep repeats until a bound proves that no choice is
more than one part in two hundred better. Where rows are few and of several sizes, single rows then move along chains of candidates, and
every division is compared where there are at most 20,000: chains of single rows alone end in local optima.

All numbers are integers: each rank computes the same shares on each machine.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

_SWEEPS: Final = 40
#: Chains are searched where they can matter; beyond, one row is less than the tolerance.
_MOST_CHAINS: Final = 400
_MOST_EDGES: Final = 4_000
#: Divisions of all demands together that are compared one by one.
_MOST_DIVISIONS: Final = 20_000


@dataclass(frozen=True)
class Demand:
    """Rows of ``row_bytes`` that any of the candidates may send."""

    candidates: tuple[int, ...]
    row_bytes: int
    rows: int


def share(demands: Sequence[Demand], loads: Sequence[int], received: int) -> list[list[int]]:
    """Return, for each demand, the rows of each candidate.

    ``loads`` are the bytes that each rank sends in any case, and ``received`` is what the busiest receiver takes: no rank is the busiest endpoint by sending less than that.
    """
    sharing = _Sharing(demands, loads, received)
    sharing.sweep()
    if not sharing.optimal():
        _Divisions(sharing).improve()
    return sharing.rows


class _Sharing:
    def __init__(self, demands: Sequence[Demand], loads: Sequence[int], received: int) -> None:
        self.demands = demands
        self.received = received
        self.fixed = list(loads)
        self.loads = list(loads)
        self.rows: list[list[int]] = [[0] * len(demand.candidates) for demand in demands]
        # Within sets of one size large rows first: small ones then level what they leave.
        self.order = sorted(
            range(len(demands)),
            key=lambda index: (len(demands[index].candidates), -demands[index].row_bytes, index),
        )

    def sweep(self) -> None:
        for index in self.order:
            self._fill(index)
        for _ in range(_SWEEPS):
            if self._good_enough(200):
                break
            for index in self.order:
                self._fill(index)
        if sum(len(self.demands[index].candidates) for index in self.order) <= _MOST_EDGES:
            self._move_along_chains()

    def _fill(self, index: int) -> None:
        """Divide one demand among its candidates so that the lowest loads rise together."""
        demand, loads = self.demands[index], self.loads
        for candidate, rows in zip(demand.candidates, self.rows[index], strict=True):
            loads[candidate] -= rows * demand.row_bytes
        filled = _level([loads[each] for each in demand.candidates], demand.rows, demand.row_bytes)
        self.rows[index] = filled
        for candidate, rows in zip(demand.candidates, filled, strict=True):
            loads[candidate] += rows * demand.row_bytes

    def optimal(self) -> bool:
        """Return whether the bound proves that no other choice has a less busy endpoint."""
        return self._good_enough(10**9)

    def _good_enough(self, parts: int) -> bool:
        busiest = max(self.loads, default=0)
        return busiest * parts <= max(self.received, self._bound()) * (parts + 1)

    def _bound(self) -> int:
        """Return a load that some rank has under any choice: what only the most loaded ranks can send, by rank."""
        busiest = max(self.loads, default=0)
        best = 0
        for percent in (99, 95, 85):
            crowd = {
                rank for rank, load in enumerate(self.loads) if load * 100 >= busiest * percent
            }
            confined = sum(self.fixed[rank] for rank in crowd) + sum(
                demand.rows * demand.row_bytes
                for demand in self.demands
                if crowd.issuperset(demand.candidates)
            )
            best = max(best, -(-confined // max(1, len(crowd))))
        return best

    def _move_along_chains(self) -> None:
        for _ in range(_MOST_CHAINS):
            busiest = max(range(len(self.loads)), key=self.loads.__getitem__, default=0)
            if not self.order or self.optimal() or not self._move_from(busiest):
                return

    def _move_from(self, busiest: int) -> bool:
        """Move a row away from a rank, and on from where it raises a load too far; whether some load fell."""
        senders: dict[int, list[tuple[int, int]]] = {}
        for index in self.order:
            for place, candidate in enumerate(self.demands[index].candidates):
                if self.rows[index][place]:
                    senders.setdefault(candidate, []).append((index, place))
        # Rank → how a chain reached it: (rank before, demand, rows); and the bytes that it brings.
        came: dict[int, tuple[int, int, int]] = {}
        queue = [(busiest, 0)]
        for rank, brought in queue:
            for index, place in senders.get(rank, ()):
                demand = self.demands[index]
                rows = max(1, -(-brought // demand.row_bytes))
                moved = rows * demand.row_bytes
                if self.rows[index][place] < rows:
                    continue
                for other in demand.candidates:
                    if other == busiest or other in came:
                        continue
                    came[other] = (rank, index, rows)
                    if self.loads[other] + moved < self.loads[busiest]:
                        self._apply(other, busiest, came)
                        return True
                    queue.append((other, moved))
        return False

    def _apply(self, end: int, start: int, came: dict[int, tuple[int, int, int]]) -> None:
        while end != start:
            before, index, rows = came[end]
            demand = self.demands[index]
            for rank, change in ((before, -rows), (end, rows)):
                self.rows[index][demand.candidates.index(rank)] += change
                self.loads[rank] += change * demand.row_bytes
            end = before


class _Divisions:
    """All divisions of a small problem, cut off where a load is no better than the best one known.

    Demands with the same candidates and row size are one group, since only the sums over them count.
    """

    def __init__(self, sharing: _Sharing) -> None:
        self._sharing = sharing
        grouped: dict[tuple[tuple[int, ...], int], list[int]] = {}
        for index, demand in enumerate(sharing.demands):
            if demand.rows:
                grouped.setdefault((demand.candidates, demand.row_bytes), []).append(index)
        # Large rows first: they cut off most.
        self._groups = sorted(grouped.items(), key=lambda item: (-item[0][1], item[0][0]))
        self._rows = [
            sum(sharing.demands[index].rows for index in members) for _, members in self._groups
        ]
        self._best = max(sharing.loads, default=0)
        self._chosen: list[tuple[int, ...]] = []
        self._found: list[tuple[int, ...]] = []

    def improve(self) -> None:
        """Replace the shares by better ones where there are any and the divisions are few."""
        count = 1
        for ((candidates, _), _), rows in zip(self._groups, self._rows, strict=True):
            count *= math.comb(rows + len(candidates) - 1, rows)
            if count > _MOST_DIVISIONS:
                return
        self._search(0, list(self._sharing.fixed))
        for (_, members), division in zip(self._groups, self._found, strict=False):
            self._give(members, list(division))

    def _search(self, depth: int, loads: list[int]) -> None:
        if depth == len(self._groups):
            self._best, self._found = max(loads), list(self._chosen)
            return
        (candidates, row_bytes), _ = self._groups[depth]
        for division in _divisions(self._rows[depth], len(candidates)):
            after = list(loads)
            for candidate, rows in zip(candidates, division, strict=True):
                after[candidate] += rows * row_bytes
            if max(after) < self._best > self._sharing.received:
                self._chosen.append(division)
                self._search(depth + 1, after)
                self._chosen.pop()

    def _give(self, members: Sequence[int], left: list[int]) -> None:
        """Divide what each candidate of a group sends among the demands of the group, in order."""
        for index in members:
            wanted = self._sharing.demands[index].rows
            given = self._sharing.rows[index] = [0] * len(left)
            for place, available in enumerate(left):
                given[place] = min(available, wanted)
                left[place] -= given[place]
                wanted -= given[place]


def _divisions(rows: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Yield each way to divide rows into so many parts."""
    if parts == 1:
        yield (rows,)
        return
    for first in range(rows + 1):
        for rest in _divisions(rows - first, parts - 1):
            yield (first, *rest)


def _level(loads: Sequence[int], rows: int, row_bytes: int) -> list[int]:
    """Return how many rows to add to each load so that the highest load is least."""
    order = sorted(range(len(loads)), key=lambda place: (loads[place], place))
    total, level = rows * row_bytes, 0
    for count, place in enumerate(order, start=1):
        total += loads[place]
        level = total // count
        if count == len(order) or level <= loads[order[count]]:
            break
    added = [max(0, level - load) // row_bytes for load in loads]
    left = rows - sum(added)
    heap = [
        (load + more * row_bytes, place)
        for place, (load, more) in enumerate(zip(loads, added, strict=True))
    ]
    heapq.heapify(heap)
    for _ in range(left):
        load, place = heap[0]
        added[place] += 1
        heapq.heapreplace(heap, (load + row_bytes, place))
    return added
