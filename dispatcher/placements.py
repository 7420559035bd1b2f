"""Placements: how one tensor is divided along one axis of a mesh; and ``Ragged``, the shape of samples of unequal length.

The names are those of DTensor: `Shard` and `Replicate`. `Owned` adds what a batch of rollouts needs: each sample has a place of its own.

Rules
1. Dimension 0 is the samples. In a `Ragged` tensor dimension 1 is the tokens of a sample, and dimensions from 2 those of one token.
2. Two axes may divide the same dimension: the later axis (in the order dp, pp, cp, tp) divides what the earlier one left.
3. All are immutable values: equal content makes them equal, with equal hashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dispatcher.errors import LayoutError

Integers: TypeAlias = NDArray[np.int64]
#: Rows and bytes are counted in signed 64-bit integers, with room for sums.
LARGEST: Final = 2**60


def integers(values: Sequence[int] | NDArray[np.integer], field: str, least: int) -> Integers:
    """Return a read-only copy of a list of integers; LayoutError for others and for those below ``least``."""
    array = np.asarray(values)
    if array.size == 0 and array.ndim <= 1:
        array = np.zeros(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise LayoutError(field, "give a flat list of integers")
    wrong = np.flatnonzero((array < least) | (array > LARGEST))
    if wrong.size:
        first = int(wrong[0])
        raise LayoutError(f"{field}[{first}]", f"is {array[first]}; give integers from {least}")
    result = array.astype(np.int64)
    result.setflags(write=False)
    return result


def integer(value: object, field: str, least: int) -> int:
    """Return a number as an int; LayoutError for another type and below ``least``."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise LayoutError(field, f"is {value!r}; give an integer from {least}")
    return int(value)


class Replicate:
    """Each coordinate of the axis has a copy. This is what an axis does that a tensor does not mention."""

    def __repr__(self) -> str:
        return "Replicate()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Replicate)

    def __hash__(self) -> int:
        return hash(Replicate)


class Shard:
    """Divides dimension ``dim`` into one chunk for each coordinate.

    As in DTensor, chunks have ceil(extent / coordinates) entries, so the last ones may be smaller or empty. ``sizes`` states other ones.
    """

    def __init__(self, dim: int, sizes: Sequence[int] | None = None) -> None:
        self.dim = integer(dim, "shard", 0)
        self.sizes = None if sizes is None else tuple(integers(sizes, "sizes", 0).tolist())

    def __repr__(self) -> str:
        return f"Shard({self.dim})" if self.sizes is None else f"Shard({self.dim}, {self.sizes})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shard) and (self.dim, self.sizes) == (other.dim, other.sizes)

    def __hash__(self) -> int:
        return hash((Shard, self.dim, self.sizes))


class Owned:
    """Gives each sample to one coordinate of the axis: ``owners[sample]``, or -1 for a sample that no rank holds.

    A coordinate is a place on the axis and no rank, so that the copies of other axes (tp) have the same samples.
    """

    def __init__(self, owners: Sequence[int] | NDArray[np.integer]) -> None:
        self.owners = integers(owners, "owned", -1)
        self._hash = hash((Owned, self.owners.tobytes()))

    def __repr__(self) -> str:
        return f"Owned({len(self.owners)} samples)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Owned) and np.array_equal(self.owners, other.owners)

    def __hash__(self) -> int:
        return self._hash


class Ragged:
    """The shape of a tensor whose sample i has ``lengths[i]`` tokens, each of shape ``inner``.

    Its arrays are flat: one token after the other, shape (tokens, *inner), without padding.
    """

    def __init__(
        self, lengths: Sequence[int] | NDArray[np.integer], inner: Sequence[int] = ()
    ) -> None:
        self.lengths = integers(lengths, "ragged", 0)
        self.inner = tuple(integers(inner, "inner", 0).tolist())
        #: Sample → its first token in the global order; one entry more than samples.
        self.offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.lengths)])
        self._hash = hash((Ragged, self.lengths.tobytes(), self.inner))

    @property
    def tokens(self) -> int:
        """Tokens of all samples."""
        return int(self.offsets[-1])

    def __repr__(self) -> str:
        return f"Ragged({len(self.lengths)} samples, {self.tokens} tokens)"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Ragged)
            and self.inner == other.inner
            and np.array_equal(self.lengths, other.lengths)
        )

    def __hash__(self) -> int:
        return self._hash


Placement: TypeAlias = Shard | Replicate | Owned
