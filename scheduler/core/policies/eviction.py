"""Greedy eviction: how many candidates are granted, and their units (paper §4.2, Algorithm 1, lines 7 to 12).

The objective of a prefix of the candidates is the sum of ends of all actions of the group: exact
for the prefix, at its best allocation, and estimated for the actions behind it (Algorithm 2).
Starting with all candidates, the last one is evicted while the objective falls.

Departures
1. The first candidate is never evicted (line 12 returns C[: -t + 1]).
2. A decrease of less than one part in 10⁹ is ignored, so that rounding never decides.
3. The computation of an objective stops once it cannot be below the best so far.

Cost: one arrangement for all evictions, and per eviction tried one walk back through it, O(n), and
one estimate, O(depth · r · log h).

Estimate of the actions behind (Algorithm 2, Appendix A). The heap holds the predicted ends of running actions and arranged candidates. Each action behind, in
order, takes the earliest end and pushes its own; the first one tries its ``depth`` smallest counts,
the others have their smallest. The estimate is the sum of their ends.

As printed, a completion frees one slot whatever units it held; this bias of the paper is kept.
Departures: line 12 would count the first action twice and line 13 pops the wrong heap; we count the
other actions, from the copy. A first action with fewer counts than ``depth`` tries all of them.

Cost: O(r · log h) for r actions behind and h ends, whatever the depth: an earlier end in the heap
never delays another, so the fastest of the first action's counts gives the least sum and is the only
one to evaluate. All evictions share the sums of smallest durations, and an estimate stops as soon as
it cannot be below ``bound``: each remaining action ends no earlier than the present earliest end plus
its smallest duration.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace
from itertools import accumulate

from scheduler.core.policies.choices import Choices
from scheduler.core.policies.dp_arrange import arranger, seconds_of
from scheduler.core.policies.group import Arrangement, Group, TriedEviction

#: Actions between two checks of the bound.
_STRIDE = 64


class Estimator:
    """Estimates for all suffixes of one queue."""

    def __init__(self, queue: Sequence[Choices], depth: int) -> None:
        self._queue = queue
        self._depth = depth
        self._smallest = [each.smallest_seconds for each in queue]
        #: after[i]: sum of the smallest durations from i on.
        self._after = [*accumulate(reversed(self._smallest), initial=0.0)]
        self._after.reverse()

    def estimate(self, ends: Sequence[float], first: int, bound: float = float("inf")) -> float:
        """Return the sum of ends of ``queue[first:]``, or inf if it is not below ``bound``.

        ``ends`` of running and arranged actions are in seconds from now, in any order.
        """
        if first >= len(self._queue):
            return 0.0
        heap = list(ends)
        heapify(heap)
        total = heap[0] + min(self._queue[first].seconds[: self._depth])
        heapreplace(heap, total)
        smallest, count = self._smallest, len(self._smallest)
        at = first + 1
        while at < count:
            if total + (count - at) * heap[0] + self._after[at] >= bound:
                return float("inf")
            for each in smallest[at : at + _STRIDE]:
                end = heap[0] + each
                total += end
                heapreplace(heap, end)
            at += _STRIDE
        return total if total < bound else float("inf")


#: Least relative decrease of the objective.
TOLERANCE = 1e-9


def evict(group: Group, depth: int) -> Arrangement:
    """Return the best arrangement; ``depth`` as in Algorithm 2."""
    candidates = group.candidates
    count = len(candidates)
    arranged = arranger(candidates, group.operator)
    estimator = Estimator([*candidates, *group.behind], depth)
    chosen = arranged.chosen(count)
    ends = seconds_of(candidates, chosen)
    objective = sum(ends) + estimator.estimate([*group.running, *ends], count)
    trials = [TriedEviction(0, objective)]
    for prefix in range(count - 1, 0, -1):
        # A further eviction must be below this objective.
        bound = objective - TOLERANCE * objective
        fewer = arranged.chosen(prefix)
        fewer_ends = seconds_of(candidates, fewer)
        exact = sum(fewer_ends)
        found = exact + estimator.estimate([*group.running, *fewer_ends], prefix, bound - exact)
        trials.append(TriedEviction(count - prefix, found if found < bound else None))
        if not found < bound:
            break
        objective, chosen, ends = found, fewer, fewer_ends
    units = [each.units[choice] for each, choice in zip(candidates, chosen, strict=False)]
    return Arrangement(units, objective, trials, ends)
