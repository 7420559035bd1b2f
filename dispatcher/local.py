"""Execution of a plan within one process: the reference that transports are compared with, and a way to place test data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dispatcher.errors import LayoutError
from dispatcher.layout import Layout
from dispatcher.transfer_plan import Arrays, TransferPlan


def execute(plan: TransferPlan, arrays: Mapping[int, Arrays]) -> dict[int, dict[str, NDArray[Any]]]:
    """Return target rank → arrays, from source rank → arrays. Arrays that are as wanted are returned, not copied."""
    results = {rank: plan.target.empty(rank) for rank in plan.target.mesh.ranks}
    for rank in plan.source.mesh.ranks:
        if rank not in plan.lost:
            plan.source.check(rank, arrays.get(rank, {}))
    for rank, result in results.items():
        ours = plan.for_rank(rank)
        for name in ours.unchanged:
            result[name] = np.asarray(arrays[rank][name])
        for segment in ours.copies:
            segment.write(result)[...] = segment.read(arrays[rank])
        for sender, segments in ours.receives.items():
            for segment in segments:
                segment.write(result)[...] = segment.read(arrays[sender])
    return results


def spread(layout: Layout, whole: Arrays) -> dict[int, dict[str, NDArray[Any]]]:
    """Return rank → its arrays of whole tensors; ragged ones are flat, shape (tokens, *inner)."""
    results = {rank: layout.empty(rank) for rank in layout.mesh.ranks}
    for name, tensor in layout.tensors.items():
        array = np.asarray(whole[name])
        if array.shape != tensor.global_shape:
            raise LayoutError(name, f"has shape {array.shape}; the whole is {tensor.global_shape}")
        for rank, result in results.items():
            for local, index in _boxes(layout, name, rank):
                result[name][local] = array[index]
    return results


def collect(layout: Layout, arrays: Mapping[int, Arrays]) -> dict[str, NDArray[Any]]:
    """Return the whole tensors of all ranks' arrays; what no rank holds is 0."""
    whole = {}
    for name, tensor in layout.tensors.items():
        whole[name] = np.zeros(tensor.global_shape, tensor.dtype)
        for rank in layout.mesh.ranks:
            for local, index in _boxes(layout, name, rank):
                whole[name][index] = arrays[rank][name][local]
    return whole


def _boxes(layout: Layout, name: str, rank: int) -> list[tuple[Any, Any]]:
    """Return (index of the local array, index of the whole) of each box of a rank."""
    if not layout.tensors[name].global_shape:
        return [((), ())]
    geometry, position = layout.geometry(name), layout.mesh.position(rank)
    rows = geometry.rows
    chosen = rows.of_class(int(geometry.row_class[position]))
    inner = tuple(slice(a, b) for a, b in geometry.boxes[int(geometry.inner_class[position])])
    columns = (rows.local[chosen], rows.start[chosen], rows.sizes[chosen])
    return [
        (slice(local, local + size), (slice(start, start + size), *inner))
        for local, start, size in zip(*(column.tolist() for column in columns), strict=True)
    ]
