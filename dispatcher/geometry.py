"""Geometry of one tensor on one mesh: the boxes that each rank holds, and where they lie in its local array.

A box is an interval of *rows* times an interval of each inner dimension. Rows are entries of dimension 0, and tokens where the tensor
is ragged. Ranks with the same coordinates on the axes that divide rows are of one *row class* and hold the same rows; likewise *inner classes*.
A rank's local array has its rows in ascending order; so an interval of rows lies in one piece there.

Everything is computed for all ranks at once, by arrays: a batch has as many intervals as samples, and they go to a thousand ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from dispatcher.placements import Integers, Owned, Placement, Ragged, Shard

#: One interval for each inner dimension.
Box = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Runs:
    """Intervals [start, stop) and their classes, ascending by class and then start. Empty intervals may be among them."""

    classes: int
    cls: Integers
    start: Integers
    stop: Integers

    @cached_property
    def sizes(self) -> Integers:
        """Length of each interval."""
        return self.stop - self.start

    @cached_property
    def totals(self) -> Integers:
        """Class → sum of its lengths."""
        sums = np.zeros(self.classes, np.int64)
        np.add.at(sums, self.cls, self.sizes)
        return sums

    @cached_property
    def local(self) -> Integers:
        """Interval → where it begins when the intervals of its class lie one after the other."""
        before = np.cumsum(self.sizes) - self.sizes
        return before - (np.cumsum(self.totals) - self.totals)[self.cls]

    def of_class(self, cls: int) -> slice:
        """Return which intervals are of a class."""
        first, last = np.searchsorted(self.cls, [cls, cls + 1])
        return slice(int(first), int(last))

    def divided(self, placement: Shard | Owned, parts: int) -> Runs:
        """Return the intervals after one more axis, of ``parts`` coordinates, divides each class."""
        if isinstance(placement, Owned):
            return self._owned(placement.owners, parts)
        if placement.sizes is not None:
            ends = np.tile(np.cumsum(placement.sizes), (self.classes, 1))
        else:
            chunks = -(-self.totals // parts)
            ends = np.minimum(chunks[:, None] * np.arange(1, parts + 1), self.totals[:, None])
        return self._cut(ends)

    def _cut(self, ends: Integers) -> Runs:
        """Cut within each class: of class c, coordinate j takes the entries up to number ``ends[c, j]``."""
        # All entries in one line, class after class: class * parts + coordinate is then the number of the chunk.
        first = (np.cumsum(self.totals) - self.totals)[:, None]
        chunk_stop = (first + ends).ravel()
        chunk_start = np.concatenate([first, first + ends[:, :-1]], axis=1).ravel()
        here = first[self.cls, 0] + self.local
        low = np.searchsorted(chunk_stop, here, "right")
        high = np.searchsorted(chunk_stop, here + self.sizes - 1, "right")
        counts = np.where(self.sizes > 0, high - low + 1, 0)
        run = np.repeat(np.arange(len(self.cls)), counts)
        chunk = counted(counts) + low[run]
        start = np.maximum(here[run], chunk_start[chunk])
        stop = np.minimum((here + self.sizes)[run], chunk_stop[chunk])
        filled = np.flatnonzero(start < stop)
        shift = (self.start - here)[run[filled]]
        pieces = [(chunk[filled], start[filled] + shift, stop[filled] + shift)]
        return _sorted_runs(ends.size, pieces)

    def _owned(self, owners: Integers, parts: int) -> Runs:
        single = self.expanded()
        coordinates = owners[single.start]
        kept = np.flatnonzero(coordinates >= 0)
        cls = single.cls[kept] * parts + coordinates[kept]
        runs = _sorted_runs(self.classes * parts, [(cls, single.start[kept], single.stop[kept])])
        return runs.joined()

    def expanded(self) -> Runs:
        """Return the same as intervals of one entry each."""
        start = counted(self.sizes) + np.repeat(self.start, self.sizes)
        return Runs(self.classes, np.repeat(self.cls, self.sizes), start, start + 1)

    def joined(self) -> Runs:
        """Return the same with neighbours of a class as one interval."""
        if not len(self.cls):
            return self
        breaks = (self.cls[1:] != self.cls[:-1]) | (self.start[1:] != self.stop[:-1])
        first = np.concatenate([[0], np.flatnonzero(breaks) + 1])
        last = np.concatenate([first[1:], [len(self.cls)]]) - 1
        return Runs(self.classes, self.cls[first], self.start[first], self.stop[last])


def counted(counts: Integers) -> Integers:
    """Return 0, 1, … up to each count, one after the other."""
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)


def _sorted_runs(classes: int, pieces: Sequence[tuple[Integers, Integers, Integers]]) -> Runs:
    cls, start, stop = (np.concatenate(column) for column in zip(*pieces, strict=True))
    order = np.lexsort((start, cls))
    return Runs(classes, cls[order], start[order], stop[order])


class Geometry:
    """Where each rank of a mesh holds a tensor. ``sizes`` and ``placements`` are by axis, in the order of the mesh."""

    def __init__(
        self,
        sizes: Sequence[int],
        shape: tuple[int, ...] | Ragged,
        placements: Sequence[Placement],
    ) -> None:
        self._sizes = tuple(sizes)
        self._shape = shape
        self.ragged = isinstance(shape, Ragged)
        first_inner = 2 if self.ragged else 1
        self.inner_shape = shape.inner if isinstance(shape, Ragged) else shape[1:]
        self._sample_axes: list[tuple[int, Shard | Owned]] = []
        self._token_axes: list[int] = []
        self._inner_axes: list[tuple[int, Shard]] = []
        for axis, placement in enumerate(placements):
            if isinstance(placement, Owned) or (isinstance(placement, Shard) and not placement.dim):
                self._sample_axes.append((axis, placement))
            elif isinstance(placement, Shard) and placement.dim < first_inner:
                self._token_axes.append(axis)
            elif isinstance(placement, Shard):
                self._inner_axes.append((axis, Shard(placement.dim - first_inner, placement.sizes)))

    @cached_property
    def samples(self) -> Runs:
        """Intervals of samples by class, before the tokens of a sample are divided."""
        if isinstance(self._shape, Ragged):
            extent = len(self._shape.lengths)
        else:
            extent = self._shape[0] if self._shape else 1
        whole = np.array([extent], np.int64)
        runs = Runs(1, np.zeros(1, np.int64), np.zeros(1, np.int64), whole)
        for axis, placement in self._sample_axes:
            runs = runs.divided(placement, self._sizes[axis])
        return runs

    @cached_property
    def rows(self) -> Runs:
        """Intervals of rows by row class; none is empty."""
        runs = self.samples
        if isinstance(self._shape, Ragged):
            if self._token_axes:
                runs = runs.expanded()
            offsets = self._shape.offsets
            runs = Runs(runs.classes, runs.cls, offsets[runs.start], offsets[runs.stop])
            for axis in self._token_axes:
                runs = _divide_tokens(runs, self._sizes[axis])
        filled = np.flatnonzero(runs.start < runs.stop)
        return Runs(runs.classes, runs.cls[filled], runs.start[filled], runs.stop[filled])

    @cached_property
    def row_class(self) -> Integers:
        """Position in the mesh → row class."""
        axes = [axis for axis, _ in self._sample_axes] + self._token_axes
        return self._classes(axes)

    @cached_property
    def inner_class(self) -> Integers:
        """Position in the mesh → inner class."""
        return self._classes([axis for axis, _ in self._inner_axes])

    @cached_property
    def boxes(self) -> list[Box]:
        """Inner class → its intervals of the inner dimensions, some of which may be empty."""
        boxes: list[Box] = [tuple((0, extent) for extent in self.inner_shape)]
        for axis, placement in self._inner_axes:
            parts, dim = self._sizes[axis], placement.dim
            boxes = [
                (*box[:dim], interval, *box[dim + 1 :])
                for box in boxes
                for interval in _chunks(*box[dim], parts, placement.sizes)
            ]
        return boxes

    @property
    def inner_whole(self) -> bool:
        """Whether each rank has whole rows."""
        return not self._inner_axes

    def local_shape(self, position: int) -> tuple[int, ...]:
        """Return the shape of the local array at a position of the mesh."""
        if self._shape == ():
            return ()
        rows = int(self.rows.totals[self.row_class[position]])
        box = self.boxes[int(self.inner_class[position])]
        return (rows, *(stop - start for start, stop in box))

    def row_name(self, row: int) -> str:
        """Return the words for a row in an error."""
        if not isinstance(self._shape, Ragged):
            return f"row {row}"
        sample = int(np.searchsorted(self._shape.offsets, row, "right")) - 1
        return f"sample {sample}"

    def samples_at(self, position: int) -> Integers:
        """Return the samples of a position, ascending; for other than ragged tensors these are rows."""
        cls = int(self.row_class[position]) // self._token_parts
        runs = self.samples
        chosen = runs.of_class(cls)
        starts, stops = runs.start[chosen].tolist(), runs.stop[chosen].tolist()
        ranges = [np.arange(a, b) for a, b in zip(starts, stops, strict=True)]
        return np.concatenate([np.zeros(0, np.int64), *ranges])

    def lengths_at(self, position: int) -> Integers:
        """Return how many tokens of each of its samples a position holds."""
        if not isinstance(self._shape, Ragged):
            return np.ones(len(self.samples_at(position)), np.int64)
        lengths = self._shape.lengths[self.samples_at(position)]
        for axis in self._token_axes:
            parts = self._sizes[axis]
            chunk = -(-lengths // parts)
            coordinate = int(self._coordinates[axis][position])
            lengths = np.clip(lengths - coordinate * chunk, 0, chunk)
        return lengths

    @property
    def _token_parts(self) -> int:
        return int(np.prod([self._sizes[axis] for axis in self._token_axes], dtype=np.int64))

    @cached_property
    def _coordinates(self) -> list[Integers]:
        positions = np.arange(int(np.prod(self._sizes, dtype=np.int64)))
        return list(np.unravel_index(positions, self._sizes))

    def _classes(self, axes: Sequence[int]) -> Integers:
        classes = np.zeros(int(np.prod(self._sizes, dtype=np.int64)), np.int64)
        for axis in axes:
            classes = classes * self._sizes[axis] + self._coordinates[axis]
        return classes


def _divide_tokens(runs: Runs, parts: int) -> Runs:
    """Divide each interval by itself, as context parallelism divides each sample."""
    chunk = -(-runs.sizes // parts)
    pieces = []
    for part in range(parts):
        start = np.minimum(runs.start + part * chunk, runs.stop)
        pieces.append((runs.cls * parts + part, start, np.minimum(start + chunk, runs.stop)))
    return _sorted_runs(runs.classes * parts, pieces)


def _chunks(
    start: int, stop: int, parts: int, sizes: tuple[int, ...] | None
) -> list[tuple[int, int]]:
    if sizes is None:
        chunk = -(-(stop - start) // parts)
        ends = [min(start + chunk * part, stop) for part in range(parts + 1)]
    else:
        ends = [start, *(start + np.cumsum(sizes)).tolist()]
    return list(pairwise(ends))
