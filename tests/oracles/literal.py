"""Algorithms 1 to 3 of the paper, line by line, on plain lists: slow, and easy to compare with it.

The reading of the design is kept (at most instead of exactly; first candidate never evicted; a
fall of the objective of less than one part in 10⁹ is none), every speed-up is not: the dynamic
program is run again for every eviction, over every total, and every estimate goes to its end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple


class Action(NamedTuple):
    """Counts (rising) and the duration at each, or what tells it for a count."""

    units: Sequence[int]
    seconds: Sequence[float]
    profile: Callable[[int], float] | None = None


class Decision(NamedTuple):
    """Counts of those that go, and the sum of ends of all."""

    units: list[int]
    objective: float


class BasicOperator:
    """The Basic DP Operator (lines 26 to 43), for totals of at most n."""

    def start(self, actions: Sequence[Action]) -> int:
        """START: no total below this is possible."""
        return sum(min(action.units) for action in actions)

    def prev(self, j: int, k: int) -> int:
        """PREV."""
        return j - k

    def is_valid(self, remaining: int, start: int) -> bool:
        """ISVALID: the earlier ones fit; at most, so that they need not fill it."""
        return remaining >= start

    def duration(self, action: Action, k: int) -> float:
        """GETDURATION at the ``k``-th count."""
        if action.profile is not None:
            return action.profile(action.units[k])
        return action.seconds[k]


def dp_arrange(candidates: Sequence[Action], free: int) -> tuple[float, list[int], list[float]]:
    """Algorithm 3 with the Basic DP Operator; the best over all totals up to ``free``."""
    operator, count = BasicOperator(), len(candidates)
    dp = [[math.inf] * (free + 1) for _ in range(count + 1)]
    choice = [[-1] * (free + 1) for _ in range(count + 1)]
    dp[0][0] = 0.0
    start_before = 0
    for i in range(1, count + 1):
        start = operator.start(candidates[:i])
        for j in range(start, free + 1):
            for k, units in enumerate(candidates[i - 1].units):
                before = operator.prev(j, units)
                if before < start_before or not operator.is_valid(before, start_before):
                    continue
                total = dp[i - 1][before] + operator.duration(candidates[i - 1], k)
                if total < dp[i][j]:
                    dp[i][j] = total
                    choice[i][j] = k
        start_before = start
    j = min(range(free + 1), key=lambda total: (dp[count][total], total))
    best = dp[count][j]
    chosen = [0] * count
    for i in range(count, 0, -1):
        chosen[i - 1] = choice[i][j]
        j = operator.prev(j, candidates[i - 1].units[choice[i][j]])
    ends = [each.seconds[k] for each, k in zip(candidates, chosen, strict=True)]
    return best, [c.units[k] for c, k in zip(candidates, chosen, strict=True)], ends


def estimate(ends: Sequence[float], behind: Sequence[Action], depth: int) -> float:
    """Algorithm 2, lines 6 to 16."""
    if not behind:
        return 0.0
    best = math.inf
    for d in range(min(depth, len(behind[0].units))):
        heap = list(ends)
        heapify(heap)
        total = 0.0
        for number, action in enumerate(behind):
            end = heappop(heap) + action.seconds[d if number == 0 else 0]
            total += end
            heappush(heap, end)
        best = min(best, total)
    return best


def decide(
    candidates: Sequence[Action],
    behind: Sequence[Action],
    running: Sequence[float],
    free: int,
    depth: int,
) -> Decision:
    """Algorithm 1, lines 7 to 12."""

    def objective(prefix: int) -> tuple[float, list[int]]:
        exact, units, ends = dp_arrange(candidates[:prefix], free)
        rest = [*candidates[prefix:], *behind]
        return exact + estimate([*running, *ends], rest, depth), units

    best, units = objective(len(candidates))
    for prefix in range(len(candidates) - 1, 0, -1):
        fewer, fewer_units = objective(prefix)
        if not fewer < best - 1e-9 * best:
            break
        best, units = fewer, fewer_units
    return Decision(units, best)
