"""Overlaps: which rows each target rank wants of which source ranks, from two geometries of one tensor.

Tensors with equal geometries form a *family*: their rows travel the same way, so one computation serves all of them. Where both sides
have whole rows, a row is one entry of the flat array; otherwise it is an entry of dimension 0 (a token) with a box of inner dimensions.
A box has several entries, and one rank sends all of them; in the smallest tensors that would be too coarse, so there each is one entry.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from dispatcher.errors import PlanError
from dispatcher.geometry import Box, Geometry, Runs, counted
from dispatcher.placements import Integers
from dispatcher.tensor_spec import TensorSpec

Slices = tuple[slice, ...]

#: Tensors with at most as many entries have boxes of one entry.
_FEW_ENTRIES: Final = 256


@dataclass(frozen=True)
class Moves:
    """Rows that target ranks want: arrays of equal length.

    ``cls`` is the class of source ranks that have the same rows and box; ``position`` that of the target rank in its mesh; ``box`` the number
    of the inner box; rows are those of the local arrays.
    """

    cls: Integers
    position: Integers
    box: Integers
    source_row: Integers
    target_row: Integers
    rows: Integers


class TensorFamily:
    """Tensors of equal geometry in both layouts."""

    def __init__(self, source: Geometry, target: Geometry, tensors: Sequence[TensorSpec]) -> None:
        self.source = source
        self.target = target
        self.tensors = tuple(tensors)
        self.flat = source.inner_whole and target.inner_whole
        self.itemsize = sum(tensor.dtype.itemsize for tensor in tensors)

    @cached_property
    def entries(self) -> Integers:
        """Box → entries of one row."""
        if self.flat:
            return np.ones(1, np.int64)
        _, _, inside = self._box_pairs
        entries: Integers = np.prod(inside[:, :, 1] - inside[:, :, 0], axis=1, dtype=np.int64)
        return entries

    @cached_property
    def source_class(self) -> Integers:
        """Position in the source mesh → class of ranks that have the same rows and box."""
        return self.source.row_class * self._source_boxes + self.source.inner_class

    def box_slices(self, box: int) -> tuple[Slices, Slices]:
        """Return where a box is within the inner dimensions of the local arrays of both sides."""
        if self.flat:
            return (), ()
        source, target, inside = (column[box] for column in self._box_pairs)
        return (
            _relative(inside, self.source.boxes[source]),
            _relative(inside, self.target.boxes[target]),
        )

    def moves(self) -> Moves:
        """Return everything that target ranks want, in place or not. PlanError where no source rank has it."""
        source, target = self.source.rows, self.target.rows
        mine, theirs, start, stop = _overlaps(source, target)
        self._check_covered(theirs, start, stop)
        source_row = source.local[mine] + start - source.start[mine]
        target_row = target.local[theirs] + start - target.start[theirs]
        order = np.argsort(self.target.row_class, kind="stable")
        first = np.searchsorted(self.target.row_class[order], np.arange(target.classes + 1))
        cls = target.cls[theirs]
        copies = (first[1:] - first[:-1])[cls]
        segment = np.repeat(np.arange(len(cls)), copies)
        position = order[first[cls][segment] + counted(copies)]
        scale = math.prod(self.source.inner_shape) if self.flat else 1
        moves = Moves(
            source.cls[mine][segment],
            position,
            np.zeros(len(segment), np.int64),
            source_row[segment] * scale,
            target_row[segment] * scale,
            (stop - start)[segment] * scale,
        )
        if not self.flat:
            return self._with_boxes(moves)
        return moves if scale else taken(moves, np.zeros(0, np.int64))

    @property
    def _source_boxes(self) -> int:
        return len(self.source.boxes)

    @cached_property
    def _box_pairs(self) -> tuple[Integers, Integers, Integers]:
        """Source box, target box and intersection (shape (boxes, dimensions, 2)) of those that meet, by target box."""
        shape = (-1, len(self.source.inner_shape), 2)
        mine = np.array(self.source.boxes, np.int64).reshape(shape)
        theirs = np.array(self.target.boxes, np.int64).reshape(shape)
        low = np.maximum(mine[None, :, :, 0], theirs[:, None, :, 0])
        high = np.minimum(mine[None, :, :, 1], theirs[:, None, :, 1])
        target, source = np.nonzero((low < high).all(axis=2))
        inside = np.stack([low[target, source], high[target, source]], axis=2)
        if math.prod(self.tensors[0].global_shape) > _FEW_ENTRIES:
            return source, target, inside
        cells = [_cells(box) for box in inside]
        copies = [len(each) for each in cells]
        whole = np.concatenate([np.zeros((0, *shape[1:]), np.int64), *cells])
        return np.repeat(source, copies), np.repeat(target, copies), whole

    def _with_boxes(self, moves: Moves) -> Moves:
        source_box, target_box, _ = self._box_pairs
        wanted = self.target.inner_class[moves.position]
        first = np.searchsorted(target_box, wanted, "left")
        counts = np.searchsorted(target_box, wanted, "right") - first
        move = np.repeat(np.arange(len(wanted)), counts)
        box = first[move] + counted(counts)
        repeated = taken(moves, move)
        return Moves(
            repeated.cls * self._source_boxes + source_box[box],
            repeated.position,
            box,
            repeated.source_row,
            repeated.target_row,
            repeated.rows,
        )

    def _check_covered(self, theirs: Integers, start: Integers, stop: Integers) -> None:
        target = self.target.rows
        covered = np.zeros(len(target.cls), np.int64)
        np.add.at(covered, theirs, stop - start)
        short = np.flatnonzero(covered < target.sizes)
        if not short.size:
            return
        row = int(target.start[short[0]])
        found = np.flatnonzero(theirs == short[0])
        for begins, ends in sorted(zip(start[found].tolist(), stop[found].tolist(), strict=True)):
            if begins > row:
                break
            row = ends
        raise PlanError(
            self.tensors[0].name,
            f"the target wants {self.source.row_name(row)} and no rank of the source holds it;"
            " leave it out of the target (owner -1), or name its owner in the source",
        )


def taken(moves: Moves, index: Integers) -> Moves:
    """Return the moves of an index."""
    return Moves(
        moves.cls[index],
        moves.position[index],
        moves.box[index],
        moves.source_row[index],
        moves.target_row[index],
        moves.rows[index],
    )


def _overlaps(source: Runs, target: Runs) -> tuple[Integers, Integers, Integers, Integers]:
    """Return (source interval, target interval, start, stop) of each intersection, ascending by target interval.

    The intervals of each side are disjoint: a row is of one class.
    """
    order = np.argsort(source.start, kind="stable")
    starts, stops = source.start[order], source.stop[order]
    first = np.searchsorted(stops, target.start, "right")
    counts = np.maximum(0, np.searchsorted(starts, target.stop, "left") - first)
    theirs = np.repeat(np.arange(len(target.cls)), counts)
    mine = order[first[theirs] + counted(counts)] if len(order) else theirs
    start = np.maximum(source.start[mine], target.start[theirs])
    stop = np.minimum(source.stop[mine], target.stop[theirs])
    return mine, theirs, start, stop


def _cells(box: Integers) -> Integers:
    """Return a box (shape (dimensions, 2)) as boxes of one entry each."""
    corners = (
        np.indices(tuple((box[:, 1] - box[:, 0]).tolist())).reshape(len(box), -1).T + box[:, 0]
    )
    return np.stack([corners, corners + 1], axis=2)


def _relative(inside: Integers, box: Box) -> Slices:
    return tuple(slice(a - c, b - c) for (a, b), (c, _) in zip(inside.tolist(), box, strict=True))
