"""Rows of a batch as flat arrays, and which rank has which of them.

A batch is a list of rows (segments of rollouts). What is small about each row, its length, reward, group and rollout, is known to every
rank (`RowFacts`); what is large, one value a token, is in `RowBlock`: the arrays of some of the rows, one behind the other.

numpy alone, 1.24 or later, since ranks run under another Python than the trainer.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

#: Array of a block → its type. Each has one value for each token.
ARRAYS: Final[Mapping[str, str]] = {
    "tokens": "int32",
    "mask": "uint8",
    "logprobs": "float32",
    "reference": "float32",
}


class RowFacts(NamedTuple):
    """What each rank knows of each row."""

    rollout: str
    group: str
    reward: float
    #: Tokens of prompt and response.
    length: int
    #: Tokens that the model sampled.
    sampled: int


class RowBlock(NamedTuple):
    """Some rows of a batch: their numbers in the batch, and the arrays of `ARRAYS`, flat."""

    numbers: tuple[int, ...]
    arrays: Mapping[str, Any]

    def save(self, file: Path) -> None:
        """Store the block, without pickles."""
        with file.open("wb") as target:
            np.savez(target, numbers=np.array(self.numbers, dtype="int64"), **self.arrays)

    @classmethod
    def load(cls, file: Path) -> RowBlock:
        """Return a stored block."""
        with np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in ARRAYS if name in stored}
            return cls(tuple(stored["numbers"].tolist()), arrays)

    def row(self, place: int, lengths: Sequence[int]) -> dict[str, Any]:
        """Return the arrays of the row at a place of the block."""
        begin = sum(lengths[each] for each in self.numbers[:place])
        end = begin + lengths[self.numbers[place]]
        return {name: values[begin:end] for name, values in self.arrays.items()}

    def chosen(self, numbers: Sequence[int], lengths: Sequence[int]) -> RowBlock:
        """Return some rows of this block, in a given order."""
        begins, at = {}, 0
        for number in self.numbers:
            begins[number] = at
            at += lengths[number]
        arrays = {
            name: np.concatenate(
                [values[begins[each] : begins[each] + lengths[each]] for each in numbers]
                or [values[:0]]
            )
            for name, values in self.arrays.items()
        }
        return RowBlock(tuple(numbers), arrays)


def block_of(numbers: Sequence[int], rows: Sequence[Mapping[str, Sequence[float]]]) -> RowBlock:
    """Return a block of rows that are given one by one; arrays that the rows do not have are left out."""
    names = [name for name in ARRAYS if rows and name in rows[0]]
    arrays = {
        name: np.concatenate([np.asarray(row[name], dtype=ARRAYS[name]) for row in rows])
        for name in names
    }
    return RowBlock(tuple(numbers), arrays)


def joined(blocks: Sequence[RowBlock]) -> RowBlock:
    """Return the rows of several blocks of the same arrays as one."""
    numbers = tuple(number for block in blocks for number in block.numbers)
    names = blocks[0].arrays
    arrays = {name: np.concatenate([block.arrays[name] for block in blocks]) for name in names}
    return RowBlock(numbers, arrays)


def owned(owners: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return the numbers of the rows of a rank."""
    return tuple(number for number, owner in enumerate(owners) if owner == rank)


def balanced(lengths: Sequence[int], ranks: Sequence[int]) -> list[int]:
    """Return a rank for each row: the longest first, each to the rank with the fewest tokens."""
    load = dict.fromkeys(ranks, 0)
    owners = [ranks[0]] * len(lengths)
    for number in sorted(range(len(lengths)), key=lambda each: -lengths[each]):
        chosen = min(load, key=lambda rank: (load[rank], rank))
        owners[number] = chosen
        load[chosen] += lengths[number]
    return owners


def advantages(rows: Sequence[RowFacts]) -> list[float]:
    """Return for each row the advantage of its rollout: the distance from its group's mean reward, in standard deviations."""
    groups: dict[str, dict[str, float]] = {}
    for row in rows:
        groups.setdefault(row.group, {})[row.rollout] = row.reward
    sums = {
        name: (statistics.fmean(found.values()), statistics.pstdev(found.values()))
        for name, found in groups.items()
    }
    return [
        (row.reward - sums[row.group][0]) / sums[row.group][1] if sums[row.group][1] else 0.0
        for row in rows
    ]
