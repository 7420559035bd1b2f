"""Cases that all transports have to pass: layouts with their tensors, built alike in each process from a name."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dispatcher.layout import Layout, Mesh, Owned, Ragged, Shard, TensorSpec
from dispatcher.local import spread
from dispatcher.plan import plan_transfer
from dispatcher.transfer_plan import TransferPlan

LENGTHS = [5, 0, 300, 17, 1, 0, 64, 1023, 2, 40, 0, 9]
Case = tuple[Layout, Layout]


def _owners(ranks: int, empty: int = -1) -> list[int]:
    """Give samples to ranks; the rank ``empty`` gets none."""
    chosen = [rank for rank in range(ranks) if rank != empty]
    return [chosen[index * 7 % len(chosen)] for index in range(len(LENGTHS))]


def ragged() -> Case:
    """Rows of rollouts, to other ranks that want them by samples; one source and one target are empty."""
    tokens, made = Ragged(LENGTHS), _owners(4, empty=2)
    wanted = [0 if index % 3 else 2 for index in range(len(LENGTHS))]

    def layout(mesh: Mesh, owners: list[int]) -> Layout:
        return Layout(
            mesh,
            [
                TensorSpec("tokens", "int32", tokens, dp=Owned(owners)),
                TensorSpec("log_probs", "float32", tokens, dp=Owned(owners)),
                TensorSpec("reward", "float64", (len(LENGTHS),), dp=Owned(owners)),
                TensorSpec("done", "bool", (len(LENGTHS),), dp=Owned(owners)),
            ],
        )

    return layout(Mesh(dp=4), made), layout(Mesh(dp=3, ranks=(3, 1, 0)), wanted)


def tensor_parallel() -> Case:
    """Columns of a matrix become rows; neither side has runs of memory that the other one has."""
    specs = [
        ("hidden", "float32", (48, 96)),
        ("bytes", "uint8", (9, 33)),
        ("none", "int16", (0, 5)),
    ]
    source = Layout(Mesh(dp=2, tp=2), [TensorSpec(*s, dp=Shard(0), tp=Shard(1)) for s in specs])
    target = Layout(Mesh(tp=4, ranks=(0, 1, 2, 3)), [TensorSpec(*s, tp=Shard(1)) for s in specs])
    return source, target


def replicated() -> Case:
    """Each half has two copies, on ranks that want nothing; rank 4 and 5 want all of it."""
    spec = ("returns", "float32", (4096, 33))
    source = Layout(Mesh(dp=2, tp=2), [TensorSpec(*spec, dp=Shard(0))])
    return source, Layout(Mesh(dp=1, tp=2, ranks=(4, 5)), [TensorSpec(*spec)])


def large() -> Case:
    """Megabytes from each rank to each other one."""
    spec = ("rows", "float32", (4 * 1024, 1024))
    return (
        Layout(Mesh(dp=4), [TensorSpec(*spec, dp=Shard(0))]),
        Layout(Mesh(tp=4), [TensorSpec(*spec, tp=Shard(1))]),
    )


def halves() -> Case:
    """Two ranks exchange halves: pairs."""
    spec = ("x", "float64", (1000,))
    return (
        Layout(Mesh(dp=2, ranks=(0, 1)), [TensorSpec(*spec, dp=Shard(0))]),
        Layout(Mesh(dp=2, ranks=(1, 0)), [TensorSpec(*spec, dp=Shard(0))]),
    )


def unchanged() -> Case:
    """Each rank has what it wants."""
    source, _ = large()
    return source, source


def other_dtype() -> Case:
    """The layouts of `halves`, of another dtype."""
    layouts = halves()
    source, target = (
        Layout(each.mesh, [TensorSpec("x", "int64", (1000,), dp=Shard(0))]) for each in layouts
    )
    return source, target


CASES: dict[str, Callable[[], Case]] = {
    each.__name__: each
    for each in (ragged, tensor_parallel, replicated, large, halves, unchanged, other_dtype)
}


def whole(layout: Layout) -> dict[str, Any]:
    """Return random bytes for each tensor: floats are NaN and infinite among others."""
    random = np.random.default_rng(11)
    found = {}
    for name, spec in layout.tensors.items():
        count = int(np.prod(spec.global_shape, dtype=np.int64))
        if spec.dtype == bool:
            flat = random.integers(0, 2, count).astype(bool)
        else:
            flat = np.frombuffer(random.bytes(count * spec.dtype.itemsize), spec.dtype)
        found[name] = flat.reshape(spec.global_shape)
    return found


def prepared(name: str) -> tuple[TransferPlan, dict[int, dict[str, Any]]]:
    """Return the plan of a case, and the arrays that each source rank has."""
    source, target = CASES[name]()
    return plan_transfer(source, target), spread(source, whole(source))


def fingerprint(arrays: Mapping[str, Any]) -> dict[str, str]:
    """Return dtype, shape and digest of the bytes of each array."""
    return {
        name: f"{array.dtype} {array.shape} {hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]}"
        for name, array in sorted(arrays.items())
    }
