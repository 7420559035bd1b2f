"""What is moved: rows of float32 that each rank made, to the ranks that train on them; every n-th row is of the same rank.

All but one n-th of each rank's bytes cross, from each rank to each other one: the all-to-all of EARL's Figure 4.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from dispatcher.layout import Layout, Mesh, Owned, Shard, TensorSpec

#: A row is the log-probabilities of 8,192 tokens.
COLUMNS = 8192


def rows(ranks: int, mebibytes: float) -> int:
    """Return the rows of all ranks together: about so many mebibytes on each rank, and the same number on each."""
    return round(mebibytes * 2**20 / COLUMNS / 4 / ranks) * ranks * ranks


def layouts(ranks: int, mebibytes: float) -> tuple[Layout, Layout]:
    """Return the layouts before and after."""
    count = rows(ranks, mebibytes)
    spec = ("returns", "float32", (count, COLUMNS))
    owners = np.arange(count) % ranks
    return (
        Layout(Mesh(dp=ranks), [TensorSpec(*spec, dp=Shard(0))]),
        Layout(Mesh(dp=ranks), [TensorSpec(*spec, dp=Owned(owners))]),
    )


def made(rank: int, ranks: int, mebibytes: float) -> Any:
    """Return the rows that a rank made."""
    count = rows(ranks, mebibytes) // ranks
    random = np.random.default_rng(rank)
    bits = random.integers(0, 2**32, count * COLUMNS, dtype=np.uint32)
    return bits.view(np.float32).reshape(count, COLUMNS)


def fingerprint(array: Any) -> str:
    """Return a digest of the bytes."""
    return hashlib.blake2b(np.ascontiguousarray(array).data).hexdigest()[:32]
