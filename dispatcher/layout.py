"""Layout of a batch: which rank of a mesh holds which part of each named tensor; and its description in JSON.

Rules
1. A layout is a value: equal layouts have equal descriptions and digests on each machine, whatever order their tensors were given in.
2. A local array is C-contiguous, of the host's byte order, and has the shape that `local_shape` says; empty ones have length 0.
3. A description is plain JSON. `from_description` reads what `description` writes, and shorter forms that a person writes:

       {"mesh": {"dp": 2, "tp": 2, "ranks": [4, 5, 6, 7]},
        "tensors": [{"name": "tokens", "dtype": "int32", "shape": {"ragged": [7, 0, 5]}, "placements": {"dp": {"owned": [0, 1, 1]}}},
                    {"name": "returns", "dtype": "float32", "shape": {"same_as": "tokens"}, "placements": {"same_as": "tokens"}},
                    {"name": "reward", "dtype": "float32", "shape": [3], "placements": {"dp": {"shard": 0}, "tp": "replicate"}}]}

   ``same_as`` names an earlier tensor of the list, whose shape or placements hold here, too; so long lists appear once. What `description`
   writes is canonical: tensors by name, ``same_as`` the first that has the same, without what is the default.

Lifetimes. A layout may be kept for as long as lengths, owners and shapes stay the same; where ranks hold what is computed at first use.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dispatcher.errors import LayoutError
from dispatcher.geometry import Geometry
from dispatcher.mesh import AXES, Mesh
from dispatcher.placements import Integers, Owned, Placement, Ragged, Replicate, Shard
from dispatcher.tensor_spec import TensorSpec

__all__ = [
    "AXES",
    "Layout",
    "LayoutError",
    "Mesh",
    "Owned",
    "Ragged",
    "Replicate",
    "Shard",
    "TensorSpec",
]

T = TypeVar("T")


class Layout:
    """Named tensors over one mesh. LayoutError names the tensor and axis that do not fit."""

    def __init__(self, mesh: Mesh, tensors: Iterable[TensorSpec]) -> None:
        self.mesh = mesh
        self.tensors: dict[str, TensorSpec] = {}
        for tensor in tensors:
            if tensor.name in self.tensors:
                raise LayoutError(f"tensors.{tensor.name}", "is given twice; names are unique")
            self.tensors[tensor.name] = tensor
        self.tensors = dict(sorted(self.tensors.items()))
        for tensor in self.tensors.values():
            tensor.check(mesh.sizes)
        self._geometries: dict[object, Geometry] = {}

    def geometry(self, name: str) -> Geometry:
        """Return where the ranks hold a tensor; tensors of equal shape and placements share one."""
        tensor = self._tensor(name)
        key = (tensor.shape, tensor.placements)
        found = self._geometries.get(key)
        if found is None:
            found = Geometry(self.mesh.sizes, tensor.shape, tensor.placements)
            self._geometries[key] = found
        return found

    def local_shape(self, name: str, rank: int) -> tuple[int, ...]:
        """Return the shape of a rank's array of a tensor."""
        return self.geometry(name).local_shape(self.mesh.position(rank))

    def samples(self, name: str, rank: int) -> Integers:
        """Return the samples (entries of dimension 0) of which a rank holds some part, ascending."""
        return self.geometry(name).samples_at(self.mesh.position(rank))

    def lengths(self, name: str, rank: int) -> Integers:
        """Return how many tokens of each of its `samples` a rank holds; with cp, its share of them."""
        return self.geometry(name).lengths_at(self.mesh.position(rank))

    def nbytes(self, rank: int) -> int:
        """Return the bytes of all arrays of a rank."""
        return sum(
            math.prod(self.local_shape(name, rank)) * tensor.dtype.itemsize
            for name, tensor in self.tensors.items()
        )

    def empty(self, rank: int) -> dict[str, NDArray[Any]]:
        """Return uninitialised arrays for a rank."""
        return {
            name: np.empty(self.local_shape(name, rank), tensor.dtype)
            for name, tensor in self.tensors.items()
        }

    def check(self, rank: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Raise LayoutError where the arrays of a rank are not what this layout says."""
        for name, tensor in self.tensors.items():
            if name not in arrays:
                raise LayoutError(name, f"rank {rank} has no array of it; give one, if empty")
            array, shape = arrays[name], self.local_shape(name, rank)
            if array.dtype != tensor.dtype:
                raise LayoutError(
                    name, f"rank {rank} has {array.dtype}, the layout {tensor.dtype}; convert it"
                )
            if array.shape != shape:
                raise LayoutError(
                    name, f"rank {rank} has shape {array.shape}, the layout {shape} for this rank"
                )
            if not array.flags.c_contiguous:
                raise LayoutError(
                    name, f"rank {rank} has a strided array; pass np.ascontiguousarray of it"
                )

    def description(self) -> dict[str, Any]:
        """Return the layout as plain JSON. Equal layouts have equal descriptions."""
        return _describe(self)

    @classmethod
    def from_description(cls, description: object) -> Layout:
        """Return the layout of a description; LayoutError names the field that is wrong."""
        return _read(description)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the description: ranks compare it before a byte leaves."""
        text = json.dumps(self.description(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def _tensor(self, name: str) -> TensorSpec:
        try:
            return self.tensors[name]
        except KeyError:
            raise LayoutError(
                name, f"is not in this layout, which has {list(self.tensors)}"
            ) from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Layout({self.mesh}, {list(self.tensors)})"


def _describe(layout: Layout) -> dict[str, Any]:
    mesh = layout.mesh
    axes: dict[str, Any] = {axis: size for axis, size in mesh.axes.items() if size > 1}
    first_shape: dict[object, str] = {}
    first_placements: dict[object, str] = {}
    tensors = []
    for name, tensor in layout.tensors.items():
        same_shape = first_shape.setdefault(tensor.shape, name)
        same_placements = first_placements.setdefault(tensor.placements, name)
        placements = {
            axis: _describe_placement(placement)
            for axis, placement in zip(AXES, tensor.placements, strict=True)
            if not isinstance(placement, Replicate)
        }
        tensors.append(
            {
                "name": name,
                "dtype": tensor.dtype.name,
                "shape": _describe_shape(tensor.shape)
                if same_shape == name
                else {"same_as": same_shape},
                "placements": placements
                if same_placements == name or not placements
                else {"same_as": same_placements},
            }
        )
    return {"mesh": {**axes, "ranks": list(mesh.ranks)}, "tensors": tensors}


def _describe_shape(shape: tuple[int, ...] | Ragged) -> Any:
    if not isinstance(shape, Ragged):
        return list(shape)
    ragged = {"ragged": shape.lengths.tolist()}
    return {**ragged, "inner": list(shape.inner)} if shape.inner else ragged


def _describe_placement(placement: Placement) -> dict[str, Any]:
    if isinstance(placement, Owned):
        return {"owned": placement.owners.tolist()}
    if isinstance(placement, Shard) and placement.sizes is not None:
        return {"shard": placement.dim, "sizes": list(placement.sizes)}
    return {"shard": placement.dim} if isinstance(placement, Shard) else {}


def _read(description: object) -> Layout:
    whole = _fields(description, "layout", {"mesh", "tensors"})
    mesh = _within("", lambda: Mesh(**_fields(whole.get("mesh", {}), "mesh", {*AXES, "ranks"})))
    entries = whole.get("tensors")
    if not isinstance(entries, list):
        raise LayoutError("tensors", "give a list of tensors")
    read: dict[str, TensorSpec] = {}
    for index, entry in enumerate(entries):
        where = f"tensors[{index}]"
        fields = _fields(entry, where, {"name", "dtype", "shape", "placements"})
        for needed in ("name", "dtype", "shape"):
            if needed not in fields:
                raise LayoutError(f"{where}.{needed}", "is missing")
        tensor = _read_tensor(where, fields, read)
        if tensor.name in read:
            raise LayoutError(f"{where}.name", f"{tensor.name} is given twice; names are unique")
        read[tensor.name] = tensor
    return Layout(mesh, read.values())


def _read_tensor(where: str, fields: dict[str, Any], read: dict[str, TensorSpec]) -> TensorSpec:
    shape = _within(f"{where}.shape", lambda: _read_shape(fields["shape"], read))
    given = fields.get("placements", {})
    if isinstance(given, dict) and "same_as" in given:
        other = _same(f"{where}.placements", given, read)
        placements = dict(zip(AXES, other.placements, strict=True))
    else:
        placements = {
            axis: _within(f"{where}.placements.{axis}", partial(_read_placement, each))
            for axis, each in _fields(given, f"{where}.placements", set(AXES)).items()
        }
    return _within(where, lambda: TensorSpec(fields["name"], fields["dtype"], shape, **placements))


def _read_shape(shape: Any, read: dict[str, TensorSpec]) -> tuple[int, ...] | Ragged:
    if isinstance(shape, dict) and "same_as" in shape:
        return _same("", shape, read).shape
    if isinstance(shape, dict):
        fields = _fields(shape, "", {"ragged", "inner"})
        return Ragged(fields.get("ragged", ()), fields.get("inner", ()))
    if not isinstance(shape, list):
        raise LayoutError("", "give a list of extents or {'ragged': lengths}")
    return tuple(shape)


def _read_placement(given: Any) -> Placement:
    if given == "replicate":
        return Replicate()
    fields = _fields(given, "", {"shard", "sizes", "owned"})
    if "owned" in fields and len(fields) == 1:
        return Owned(fields["owned"])
    if "shard" in fields and "owned" not in fields:
        return Shard(fields["shard"], fields.get("sizes"))
    raise LayoutError("", "give 'replicate', {'shard': dimension} or {'owned': owners}")


def _same(where: str, given: dict[str, Any], read: dict[str, TensorSpec]) -> TensorSpec:
    name = given["same_as"]
    if not isinstance(name, str) or name not in read or len(given) > 1:
        raise LayoutError(
            where, f"same_as {name!r}; name one earlier tensor of the list and nothing else"
        )
    return read[name]


def _fields(given: object, where: str, known: set[str]) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise LayoutError(where, "give an object")
    unknown = sorted(str(field) for field in set(given) - known)
    if unknown:
        raise LayoutError(
            where, f"has unknown {', '.join(unknown)}; known are {', '.join(sorted(known))}"
        )
    return given


def _within(where: str, make: Callable[[], T]) -> T:
    """Call ``make``; its LayoutErrors name the field from the description's root."""
    try:
        return make()
    except LayoutError as error:
        raise LayoutError(
            ".".join(part for part in (where, error.field) if part), error.problem
        ) from None
