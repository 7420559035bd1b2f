"""One named tensor of a layout: what it is, and how each axis of the mesh divides it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dispatcher.errors import LayoutError
from dispatcher.mesh import AXES
from dispatcher.placements import LARGEST, Owned, Placement, Ragged, Replicate, Shard, integers


class TensorSpec:
    """One named tensor of a layout: dtype, global shape (or `Ragged`) and one placement for each axis; `Replicate` where none is given."""

    def __init__(
        self,
        name: str,
        dtype: DTypeLike,
        shape: Sequence[int] | Ragged,
        *,
        dp: Placement | None = None,
        pp: Placement | None = None,
        cp: Placement | None = None,
        tp: Placement | None = None,
    ) -> None:
        self.name = _checked_name(name)
        self.dtype = _plain_dtype(dtype, name)
        self.shape: tuple[int, ...] | Ragged = (
            shape
            if isinstance(shape, Ragged)
            else tuple(integers(shape, f"{name}.shape", 0).tolist())
        )
        self.placements: tuple[Placement, ...] = tuple(
            Replicate() if placement is None else placement for placement in (dp, pp, cp, tp)
        )
        if math.prod(self.global_shape) > LARGEST:
            raise LayoutError(f"{name}.shape", "has more entries than can be counted")

    @property
    def global_shape(self) -> tuple[int, ...]:
        """Shape of the whole tensor as one array; of a ragged one (tokens, *inner)."""
        if isinstance(self.shape, Ragged):
            return (self.shape.tokens, *self.shape.inner)
        return self.shape

    @property
    def samples(self) -> int:
        """Extent of dimension 0."""
        if isinstance(self.shape, Ragged):
            return len(self.shape.lengths)
        return self.shape[0] if self.shape else 1

    def check(self, sizes: Sequence[int]) -> None:
        """Raise LayoutError where a placement does not fit this tensor or the sizes of a mesh."""
        for axis, size, placement in zip(AXES, sizes, self.placements, strict=True):
            _check_placement(self, axis, size, placement)

    def __repr__(self) -> str:
        return f"TensorSpec({self.name!r}, {self.dtype.name}, {self.shape}, {self.placements})"


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise LayoutError("name", f"is {name!r}; give each tensor a name")
    return name


def _plain_dtype(dtype: DTypeLike, name: str) -> np.dtype[Any]:
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = np.dtype(object)
    if found.kind not in "biufc" or found.names is not None:
        raise LayoutError(
            f"{name}.dtype",
            f"{dtype!r} is no numeric dtype of numpy; view bfloat16 as uint16, which has its size",
        )
    return found.newbyteorder("=")


def _check_placement(tensor: TensorSpec, axis: str, size: int, placement: Placement) -> None:
    where = f"{tensor.name}.{axis}"
    if isinstance(placement, Shard):
        _check_shard(tensor, where, size, placement)
    elif isinstance(placement, Owned):
        if not tensor.global_shape:
            raise LayoutError(
                where, "owns samples of a tensor without dimensions; give it shape [1]"
            )
        if len(placement.owners) != tensor.samples:
            raise LayoutError(
                where, f"owns {len(placement.owners)} samples; the tensor has {tensor.samples}"
            )
        if len(placement.owners) and int(placement.owners.max()) >= size:
            raise LayoutError(
                where,
                f"gives a sample to coordinate {placement.owners.max()}; the axis has {size}, from 0",
            )
    elif not isinstance(placement, Replicate):
        raise LayoutError(where, f"is {placement!r}; give Shard, Replicate or Owned")


def _check_shard(tensor: TensorSpec, where: str, size: int, shard: Shard) -> None:
    ragged = isinstance(tensor.shape, Ragged)
    dims = len(tensor.global_shape) + ragged
    if shard.dim >= dims:
        raise LayoutError(where, f"shards dimension {shard.dim}; the tensor has {dims}, from 0")
    if shard.sizes is None:
        return
    if ragged and shard.dim == 1:
        raise LayoutError(where, "gives sizes to tokens, which differ by sample; leave sizes out")
    if len(shard.sizes) != size:
        raise LayoutError(where, f"has {len(shard.sizes)} sizes; the axis needs {size}")
    same = sum(
        (isinstance(each, Owned) and shard.dim == 0)
        or (isinstance(each, Shard) and each.dim == shard.dim)
        for each in tensor.placements
    )
    if same > 1:
        raise LayoutError(where, "gives sizes to a dimension that another axis divides, too")
    extent = tensor.samples if shard.dim == 0 else tensor.global_shape[shard.dim - ragged]
    if sum(shard.sizes) != extent:
        raise LayoutError(
            where, f"has sizes that sum to {sum(shard.sizes)}; the extent is {extent}"
        )
