"""Random layouts of one batch on two meshes, and what a plan between them must do, computed entry by entry."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import strategies as st

from dispatcher.layout import AXES, Layout, Mesh, Owned, Ragged, Shard, TensorSpec
from dispatcher.local import spread

DTYPES = ("int8", "float32", "int32", "float64")


@st.composite
def meshes(draw, most_ranks=8, numbers=12):
    """A mesh of a few ranks with numbers in any order."""
    sizes = {axis: draw(st.integers(1, 3)) for axis in AXES}
    while np.prod(list(sizes.values())) > most_ranks:
        largest = max(sizes, key=sizes.__getitem__)
        sizes[largest] -= 1
    ranks = draw(st.permutations(range(numbers)))
    return Mesh(**sizes, ranks=ranks[: int(np.prod(list(sizes.values())))])


@st.composite
def shapes(draw, samples):
    """A fixed or ragged shape with zero extents and lengths among them."""
    if draw(st.booleans()):
        inner = draw(st.sampled_from([(), (), (2,), (3, 2), (0,)]))
        lengths = draw(st.lists(st.integers(0, 5), min_size=samples, max_size=samples))
        return Ragged(lengths, inner)
    return draw(st.sampled_from([(), (samples,), (samples, 3), (samples, 2, 5), (7,), (0, 2)]))


@st.composite
def placements(draw, shape, size, lost=False):
    """Some placement along an axis of that size; with ``lost``, samples may have no owner."""
    ragged = isinstance(shape, Ragged)
    dims = (2 + len(shape.inner)) if ragged else len(shape)
    extent = len(shape.lengths) if ragged else (shape[0] if shape else 0)
    kind = draw(st.sampled_from(["replicate", "shard", "shard", "owned"]))
    if kind == "replicate" or not dims:
        return None
    if kind == "shard":
        return Shard(draw(st.integers(0, dims - 1)))
    owners = st.integers(-1 if lost else 0, size - 1)
    return Owned(draw(st.lists(owners, min_size=extent, max_size=extent)))


@st.composite
def transfers(draw, most_ranks=8, numbers=12):
    """A source and a target layout of the same tensors; the target may leave samples out."""
    source, target = draw(meshes(most_ranks, numbers)), draw(meshes(most_ranks, numbers))
    samples = draw(st.integers(0, 6))
    ours, theirs = [], []
    for number in range(draw(st.integers(1, 3))):
        name, dtype, shape = f"t{number}", draw(st.sampled_from(DTYPES)), draw(shapes(samples))
        ours.append(TensorSpec(name, dtype, shape, **_by_axis(draw, shape, source, False)))
        theirs.append(TensorSpec(name, dtype, shape, **_by_axis(draw, shape, target, True)))
    return Layout(source, ours), Layout(target, theirs)


@st.composite
def replicated_transfers(draw):
    """Small tensors that are replicated over different axes, so that many choices of senders exist."""
    source, target = draw(meshes(4, 6)), draw(meshes(4, 10))
    ours, theirs = [], []
    for number in range(draw(st.integers(1, 3))):
        name, shape = f"t{number}", (draw(st.integers(1, 5)),)
        dtype = draw(st.sampled_from(DTYPES))
        ours.append(TensorSpec(name, dtype, shape, **_some_sharded(draw, source)))
        theirs.append(TensorSpec(name, dtype, shape, **_some_sharded(draw, target)))
    return Layout(source, ours), Layout(target, theirs)


def _some_sharded(draw, mesh):
    return {
        axis: draw(st.sampled_from([None, None, Shard(0)]))
        for axis, size in mesh.axes.items()
        if size > 1
    }


def _by_axis(draw, shape, mesh, lost):
    return {
        axis: draw(placements(shape, size, lost)) for axis, size in mesh.axes.items() if size > 1
    }


def numbered(layout):
    """Whole tensors whose entries differ from each other, as far as their dtype can."""
    return {
        name: np.arange(np.prod(tensor.global_shape), dtype=np.int64)
        .astype(tensor.dtype)
        .reshape(tensor.global_shape)
        for name, tensor in layout.tensors.items()
    }


def entries_held(layout):
    """Rank → (tensor, index of an entry of the whole) that it holds."""
    indexed = Layout(
        layout.mesh,
        [
            TensorSpec(
                name, "int64", tensor.shape, **dict(zip(AXES, tensor.placements, strict=True))
            )
            for name, tensor in layout.tensors.items()
        ],
    )
    return {
        rank: {(name, int(entry)) for name, array in arrays.items() for entry in array.reshape(-1)}
        for rank, arrays in spread(indexed, numbered(indexed)).items()
    }


def wanted_entries(source, target):
    """Target rank → entries that it lacks."""
    held = entries_held(source)
    return {rank: entries - held.get(rank, set()) for rank, entries in entries_held(target).items()}


def least_busiest(source, target, hosts, limit=20_000):
    """Return the bytes of the busiest endpoint under the best choice of senders, or None where there are too many choices."""
    held = entries_held(source)
    groups: dict[tuple[tuple[int, ...], int], int] = {}
    received: dict[int, int] = {}
    for rank, entries in wanted_entries(source, target).items():
        for name, index in entries:
            size = target.tensors[name].dtype.itemsize
            holders = [each for each in held if (name, index) in held[each]]
            near = [each for each in holders if hosts.get(each, each) == hosts.get(rank, rank)]
            key = (tuple(near or holders), size)
            groups[key] = groups.get(key, 0) + 1
            received[rank] = received.get(rank, 0) + size
    choices = [list(_divisions(count, len(senders))) for (senders, _), count in groups.items()]
    if np.prod([float(len(each)) for each in choices]) > limit:
        return None
    best = None
    for choice in product(*choices):
        sent: dict[int, int] = {}
        for ((senders, size), _), counts in zip(groups.items(), choice, strict=True):
            for sender, count in zip(senders, counts, strict=True):
                sent[sender] = sent.get(sender, 0) + size * count
        busiest = max([*sent.values(), *received.values()], default=0)
        best = busiest if best is None else min(best, busiest)
    return best


def _divisions(count, parts):
    if parts == 1:
        yield (count,)
        return
    for first in range(count + 1):
        for rest in _divisions(count - first, parts - 1):
            yield (first, *rest)
