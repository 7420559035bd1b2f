"""Estimate of the finish times behind the candidates: Algorithm 2, ``estimate`` (paper Appendix A).

The heap holds the predicted ends of running actions and arranged candidates. Each action behind, in
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
