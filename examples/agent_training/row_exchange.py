"""How rows get from the ranks that have them to the ranks that need them.

`GatherScatter` stands in where the dispatcher is left out: rank 0 receives all rows, and sends each rank its own, as drivers of
trainers do. Every exchange is collective: each rank calls it, with the same owners.

Needs PyTorch with an initialised process group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import distributed

from examples.agent_training.row_blocks import (
    ARRAYS,
    RowBlock,
    RowFacts,
    advantages,
    joined,
    owned,
)


class RowExchange(Protocol):
    """Moves rows between ranks."""

    def move(
        self, block: RowBlock, source: Sequence[int], target: Sequence[int], lengths: Sequence[int]
    ) -> RowBlock:
        """Return the rows that this rank has by ``target``; ``block`` has those that it has by ``source``.

        ``source`` and ``target``: rank of each row; ``lengths``: tokens of each row. Ranks that have no row of ``source`` give an
        empty block with the same arrays.
        """

    def advantages(
        self, rows: Sequence[RowFacts], source: Sequence[int], numbers: Sequence[int]
    ) -> list[float]:
        """Return the advantages of the rows ``numbers``; the rewards of a row are at its rank by ``source``."""

    def close(self) -> None:
        """Release connections."""


class GatherScatter:
    """All rows pass rank 0."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks

    def move(
        self, block: RowBlock, source: Sequence[int], target: Sequence[int], lengths: Sequence[int]
    ) -> RowBlock:
        """Return the rows of this rank by ``target``."""
        names = list(block.arrays)
        if self.rank:
            if block.numbers:
                _send(block, names, 0)
            numbers = owned(target, self.rank)
            return _receive(numbers, names, lengths, 0) if numbers else _empty(names)
        others = [
            _receive(numbers, names, lengths, rank)
            for rank in range(1, self.ranks)
            if (numbers := owned(source, rank))
        ]
        whole = joined([block, *others])
        for rank in range(1, self.ranks):
            if numbers := owned(target, rank):
                _send(whole.chosen(numbers, lengths), names, rank)
        return whole.chosen(owned(target, 0), lengths)

    def advantages(
        self, rows: Sequence[RowFacts], source: Sequence[int], numbers: Sequence[int]
    ) -> list[float]:
        """Return the advantages of some rows, from the rewards that the order has of all rows."""
        every = advantages(rows)
        return [every[number] for number in numbers]

    def close(self) -> None:
        """Do nothing: the process group is the rank's."""


def empty_block(names: Sequence[str]) -> RowBlock:
    """Return a block without rows."""
    return _empty(names)


def _empty(names: Sequence[str]) -> RowBlock:
    return RowBlock((), {name: np.zeros(0, dtype=ARRAYS[name]) for name in names})


def _send(block: RowBlock, names: Sequence[str], to: int) -> None:
    for name in names:
        distributed.send(torch.from_numpy(np.ascontiguousarray(block.arrays[name])), to)


def _receive(
    numbers: Sequence[int], names: Sequence[str], lengths: Sequence[int], of: int
) -> RowBlock:
    size = sum(lengths[number] for number in numbers)
    arrays: dict[str, Any] = {}
    for name in names:
        values = torch.from_numpy(np.zeros(size, dtype=ARRAYS[name]))
        distributed.recv(values, of)
        arrays[name] = values.numpy()
    return RowBlock(tuple(numbers), arrays)
