"""Buddy blocks: the free GPUs, read as the largest aligned blocks they form (paper §5.3: chunks).

Slots are numbered consecutively, eight to a *cell*. A node fills whole cells, so a block is aligned in
its cell exactly when it is aligned on its node. A cell is one byte, a bit for each free slot; tables
of 256 entries map a byte to its blocks. So buddies need not be merged.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from domain.chunks import SIZES, TOP, Counts

#: Slots of a cell.
CELL: Final = SIZES[-1]
Places = NDArray[np.bool_]


def _blocks(mask: int, level: int = TOP, first: int = 0) -> list[tuple[int, int]]:
    """Return (level, first slot) of the largest aligned blocks that the bits of ``mask`` form."""
    size = SIZES[level]
    ones = ((1 << size) - 1) << first
    if mask & ones == ones:
        return [(level, first)]
    if level == 0:
        return []
    return _blocks(mask, level - 1, first) + _blocks(mask, level - 1, first + size // 2)


def _counts(mask: int) -> Counts:
    levels = [level for level, _ in _blocks(mask)]
    return (levels.count(0), levels.count(1), levels.count(2), levels.count(3))


def _places(level: int, source: int) -> Places:
    """Return for each mask the places of ``level`` in blocks of ``source``, as (256, 8 / size)."""
    table = np.zeros((256, CELL >> level), dtype=np.bool_)
    for mask in range(256):
        for block, first in _blocks(mask):
            if block == source:
                table[mask, first >> level : (first + SIZES[block]) >> level] = True
    return table


_COUNTS: Final = [_counts(mask) for mask in range(256)]
_PLACES: Final = {
    (level, source): _places(level, source)
    for source in range(TOP + 1)
    for level in range(source + 1)
}


class Buddies:
    """Free slots of some cells. All start as not free."""

    def __init__(self, cells: int) -> None:
        self._masks = np.zeros(cells, dtype=np.uint8)
        self._counts = [0] * len(SIZES)

    @property
    def counts(self) -> Counts:
        """Free blocks by size."""
        one, two, four, eight = self._counts
        return (one, two, four, eight)

    def set(self, slot: int, *, free: bool) -> None:
        """Mark one slot free or not."""
        cell, bit = slot // CELL, 1 << slot % CELL
        before = int(self._masks[cell])
        after = before | bit if free else before & ~bit
        if after == before:
            return
        self._masks[cell] = after
        for level, (less, more) in enumerate(zip(_COUNTS[before], _COUNTS[after], strict=True)):
            self._counts[level] += more - less

    def free(self, slot: int) -> bool:
        """Say whether a slot is free."""
        return bool(int(self._masks[slot // CELL]) >> slot % CELL & 1)

    def places(self, level: int, source: int) -> Places:
        """Return the places of ``level`` in free blocks of level ``source``, as a mask.

        Shape (cells, 8 / size): the place in row r and column c begins at slot 8 r + size · c.
        """
        return _PLACES[level, source][self._masks]
