"""Chunks: aligned blocks of 1, 2, 4 or 8 GPUs of one node, as a buddy system.

Theory of operation. A request for k GPUs takes one chunk of 2^⌈log2 k⌉ (paper §5.3). Because every
size divides the next larger one, feasibility depends on the number of free chunks of each size and
not on their positions. Free chunks are always counted as large as possible: two free buddies are
one chunk of twice the size.

Rules
1. A chunk is taken from the smallest free one that suffices, which is halved as often as needed.
2. Requests fit together exactly if, for every size, requests of at least that size need no more
   GPUs than free chunks of at least that size have. Rule 1 then serves them in any order: it never
   splits a larger chunk while a smaller one suffices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from domain.errors import NeverFits
from domain.resources import MILLI

#: Sizes of chunks in GPUs; the position is the *level* of a chunk (the paper's a).
SIZES: Final = (1, 2, 4, 8)
TOP: Final = len(SIZES) - 1
#: Kinds of resources that are granted as chunks.
CHUNKED: Final = frozenset({"gpu"})
#: Free chunks of 1, 2, 4 and 8 GPUs.
Counts = tuple[int, int, int, int]


def aligned(
    group: Sequence[int], size: int, without: frozenset[int] = frozenset()
) -> Iterator[tuple[int, ...]]:
    """Yield the aligned chunks of ``size`` GPUs of a node's ``group`` that contain none of ``without``."""
    for first in range(0, len(group) - size + 1, size):
        units = tuple(group[first : first + size])
        if without.isdisjoint(units):
            yield units


def level_of(amount: int) -> int | None:
    """Return the level of the chunk for ``amount`` milli-units; None: no chunk has this amount."""
    gpus, rest = divmod(amount, MILLI)
    if rest or not 0 < gpus <= SIZES[-1]:
        return None
    return (gpus - 1).bit_length()


def whole_chunk(name: str, counts: Sequence[int]) -> int:
    """Return the milli-units of the chunk for the smallest of ``counts`` of the resource ``name``.

    Raises NeverFits unless there is a chunk for each of them.
    """
    levels = [level_of(count) for count in counts]
    if levels[0] is None or None in levels:
        raise NeverFits(f"{name}: a chunk has 1 to {SIZES[-1]} whole GPUs", pointer=f"/cost/{name}")
    return amount_at(levels[0])


def amount_at(level: int) -> int:
    """Return the milli-units of a whole chunk of ``level``."""
    return SIZES[level] * MILLI


def gpus_of(counts: Counts) -> int:
    """Return the number of GPUs in ``counts`` chunks."""
    return sum(count * size for count, size in zip(counts, SIZES, strict=True))


def fit(counts: Counts, levels: Iterable[int]) -> bool:
    """Return whether chunks of ``levels`` can all be taken from ``counts`` (rule 2)."""
    wanted = [0] * len(SIZES)
    for level in levels:
        wanted[level] += 1
    spare = 0
    for level in range(TOP, -1, -1):
        spare = 2 * spare + counts[level] - wanted[level]
        if spare < 0:
            return False
    return True


def source_of(counts: Counts, level: int) -> int | None:
    """Return the level of the smallest free chunk that suffices; None when there is none."""
    return next((above for above in range(level, TOP + 1) if counts[above]), None)


def without(counts: Counts, level: int) -> Counts | None:
    """Return the counts after one chunk of ``level`` is taken (rule 1); None: none suffices."""
    source = source_of(counts, level)
    if source is None:
        return None
    left = list(counts)
    left[source] -= 1
    for half in range(level, source):
        left[half] += 1
    return (left[0], left[1], left[2], left[3])


def beside(counts: Counts, amounts: Iterable[int]) -> Counts:
    """Return the counts after chunks for ``amounts`` (milli-units) are taken.

    Amounts that do not fit are skipped; amounts that fit together never are (rule 2).
    """
    for amount in amounts:
        level = level_of(amount)
        counts = (None if level is None else without(counts, level)) or counts
    return counts
