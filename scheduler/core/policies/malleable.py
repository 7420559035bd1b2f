"""Policy ``malleable``: actions that declare it are resized while they run.

A grant is no longer a bet on the load to come: whoever arrives takes units from the widest, and
units that come free go to the narrowest, so at every moment all malleable actions of a resource are
about equally wide. That is processor sharing in whole units, which no burst can catch with its
units handed out. The paper cannot do this. Actions that do not declare it are treated as by
`balanced`; what they need at their smallest counts is taken from malleable ones as well.

An action counts only up to the width from which on its profile says it gets no faster. A program
with a fixed number of workers runs with as many as its widest count, squeezed onto fewer cores.

Each running action grows at most once in `RESIZE_SECONDS`, and so is shrunk for the sake of equal
widths alone; it is shrunk at any time for who would have to wait otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from scheduler.core.policies.balanced import Balanced
from scheduler.core.policies.choices import Choices

#: Between two changes of one action that nobody waits for.
RESIZE_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Malleable(Balanced):
    """`Balanced` for those that are not malleable; `widths` for those that are."""

    name: str = "malleable"


def widths(counts: Sequence[Sequence[int]], total: int) -> list[int]:
    """Return how wide each of them is when ``total`` is shared out as equally as may be.

    ``counts`` are rising; everybody has at least the first one, which together fit into ``total``.
    The narrowest is raised first, of equals the earliest; who cannot be raised any more, because
    the next count is not there or does not fit, stays. O(s · log n) for s steps in all.
    """
    at = [0] * len(counts)
    left = total - sum(each[0] for each in counts)
    heap = [(each[0], index) for index, each in enumerate(counts) if len(each) > 1]
    heapify(heap)
    while heap and left > 0:
        width, index = heap[0]
        following = counts[index][at[index] + 1]
        if following - width > left:
            heappop(heap)
            continue
        left -= following - width
        at[index] += 1
        if at[index] + 1 < len(counts[index]):
            heapreplace(heap, (following, index))
        else:
            heappop(heap)
    return [each[k] for each, k in zip(counts, at, strict=True)]


def useful(choices: Choices) -> tuple[int, ...]:
    """Return the counts up to the one from which on more units save nothing."""
    if len(choices) == 1:
        return choices.units
    return choices.units[: int(choices.table.argmin()) + 1]
