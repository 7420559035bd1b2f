"""Balance: which coordinate gets which samples, so that each has about as many tokens.

Samples are given out longest first, each to the coordinate with the least so far; then the fullest coordinate exchanges or gives away samples as long as that
lowers its load without making another one fuller. With equal counts, no coordinate has more than one sample more than another.
The result depends on the lengths alone: each rank that has them computes the same owners.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dispatcher.errors import LayoutError
from dispatcher.placements import Owned, integer, integers

#: Exchanges are tried against so many of the emptiest coordinates, and end after so many per coordinate.
_PARTNERS: Final = 16
_EXCHANGES: Final = 8


def balanced(
    lengths: Sequence[int] | NDArray[np.integer],
    parts: int,
    *,
    weights: Sequence[int] | NDArray[np.integer] | None = None,
    equal_counts: bool = False,
) -> Owned:
    """Give each sample to one of ``parts`` coordinates.

    ``weights`` balances these integers instead of the lengths: with ``lengths ** 2``, for example, the work of attention. ``equal_counts`` is for
    trainers that need as many samples on each rank, give or take one.
    """
    parts = integer(parts, "parts", 1)
    samples = integers(lengths, "lengths", 0)
    chosen = samples if weights is None else integers(weights, "weights", 0)
    if len(chosen) != len(samples):
        raise LayoutError("weights", f"has {len(chosen)} entries; lengths has {len(samples)}")
    shares = _Shares(chosen.tolist(), parts, equal_counts)
    shares.give_out()
    shares.exchange()
    owners = np.zeros(len(samples), np.int64)
    for part, members in enumerate(shares.members):
        owners[[sample for _, sample in members]] = part
    return Owned(owners)


class _Shares:
    """Members of each coordinate as (weight, sample), ascending."""

    def __init__(self, weights: list[int], parts: int, equal_counts: bool) -> None:
        self._weights = weights
        self._equal_counts = equal_counts
        self.members: list[list[tuple[int, int]]] = [[] for _ in range(parts)]
        self.loads = [0] * parts

    def give_out(self) -> None:
        order = sorted(
            range(len(self._weights)), key=lambda sample: (-self._weights[sample], sample)
        )
        parts = len(self.loads)
        # With equal counts each coordinate gets one sample of each round.
        rounds = parts if self._equal_counts else max(1, len(order))
        for first in range(0, len(order), rounds):
            heap = [(load, part) for part, load in enumerate(self.loads)]
            heapq.heapify(heap)
            for sample in order[first : first + rounds]:
                load, part = heapq.heappop(heap)
                self.loads[part] = load + self._weights[sample]
                self.members[part].append((self._weights[sample], sample))
                if not self._equal_counts:
                    heapq.heappush(heap, (self.loads[part], part))
        for members in self.members:
            members.sort()

    def exchange(self) -> None:
        for _ in range(_EXCHANGES * len(self.loads)):
            fullest = max(range(len(self.loads)), key=lambda part: (self.loads[part], -part))
            partners = heapq.nsmallest(
                _PARTNERS, range(len(self.loads)), key=lambda part: (self.loads[part], part)
            )
            if not any(self._improve(fullest, part) for part in partners if part != fullest):
                return

    def _improve(self, full: int, other: int) -> bool:
        """Move weight from the fuller coordinate, at best half of the difference; whether any was moved."""
        difference = self.loads[full] - self.loads[other]
        best, found = difference, None
        # A given-away sample is exchanged for none.
        options = self.members[other] if self._equal_counts else [(0, -1), *self.members[other]]
        for mine in self.members[full]:
            wanted = mine[0] - difference / 2
            place = bisect.bisect_left(options, (wanted,))
            for theirs in options[max(0, place - 1) : place + 1]:
                moved = mine[0] - theirs[0]
                if abs(difference - 2 * moved) < best:
                    best, found = abs(difference - 2 * moved), (mine, theirs)
        if found is None:
            return False
        mine, theirs = found
        self._move(mine, full, other)
        if theirs[1] >= 0:
            self._move(theirs, other, full)
        return True

    def _move(self, member: tuple[int, int], source: int, target: int) -> None:
        self.members[source].remove(member)
        bisect.insort(self.members[target], member)
        self.loads[source] -= member[0]
        self.loads[target] += member[0]
