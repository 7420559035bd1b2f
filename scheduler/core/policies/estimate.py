"""What the actions behind the candidates will take: Algorithm 2, ``estimate`` (paper Appendix A).

The heap holds when running actions and arranged candidates will end. Each action behind takes the
earliest end, in order, and puts its own end back; the first one tries its ``depth`` smallest
counts, the others have their smallest. The sum of their ends is the estimate.

As printed, a completion frees one slot whatever units it held. That bias is the paper's and stays.
Departures: line 12 would count the first action twice and line 13 pops the wrong heap; we take the
others, from the copy. A first action with fewer counts than ``depth`` tries those it has.

Cost: O(r · log h) for r actions behind and h ends, whatever the depth: an earlier end in the heap
makes no later one later, so of the first action's counts the fastest gives the least sum and is the
only one to follow. The sums of smallest durations are shared by all evictions, and an estimate is
given up as soon as it cannot be below ``bound``: every action left takes at least the earliest end
there is now, plus its smallest duration.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace
from itertools import accumulate

from scheduler.core.policies.choices import Choices

#: So many actions are placed between two looks at the bound.
_STRIDE = 64


class Estimator:
    """Estimates for every suffix of one queue."""

    def __init__(self, queue: Sequence[Choices], depth: int) -> None:
        self._queue = queue
        self._depth = depth
        self._smallest = [each.smallest_seconds for each in queue]
        #: after[i]: sum of the smallest durations from i on.
        self._after = [*accumulate(reversed(self._smallest), initial=0.0)]
        self._after.reverse()

    def estimate(self, ends: Sequence[float], first: int, bound: float = float("inf")) -> float:
        """Return the sum of ends of ``queue[first:]``, or inf when it is not below ``bound``.

        ``ends`` are the ends of what runs or is arranged, in seconds from now, in any order.
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
