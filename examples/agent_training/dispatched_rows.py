"""Rows and sums of groups between ranks by Tangram's dispatcher: each byte goes once, straight from the rank that has it.

The layouts have one coordinate for each rank: row i belongs to the rank that the owners name. Ranks open one group of connections when they
start, and use it for all steps. An error closes the group and ends the rank; the trainer starts all ranks again.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import distributed

from dispatcher.layout import Layout, Mesh, Owned, Ragged, TensorSpec
from dispatcher.plan import plan_transfer
from dispatcher.reduce import SUMS, GroupSums, sums_layouts
from dispatcher.transport.tcp import TcpTransport, listen
from examples.agent_training.row_blocks import ARRAYS, RowBlock, RowFacts, owned


class DispatchedRows:
    """Moves rows by plans of the dispatcher, over TCP."""

    def __init__(self, rank: int, ranks: int, timeout_seconds: float = 120.0) -> None:
        """Connect all ranks; collective."""
        self.rank, self.ranks = rank, ranks
        self._timeout = timeout_seconds
        listener = listen("127.0.0.1")
        mine = (listener.getsockname()[:2], secrets.token_bytes(16))
        every: list[Any] = [None] * ranks
        distributed.all_gather_object(every, mine)
        addresses = {number: tuple(address) for number, (address, _) in enumerate(every)}
        self._group = TcpTransport(rank, addresses, listener=listener, secret=every[0][1])
        #: Bytes that this rank sent in the latest exchange of rows.
        self.sent_bytes = 0

    def move(
        self, block: RowBlock, source: Sequence[int], target: Sequence[int], lengths: Sequence[int]
    ) -> RowBlock:
        """Return the rows of this rank by ``target``."""
        names = list(block.arrays)
        plan = plan_transfer(
            self._layout(names, source, lengths), self._layout(names, target, lengths)
        )
        arrays = {name: np.ascontiguousarray(values) for name, values in block.arrays.items()}
        found = self._group.exchange(plan, arrays, timeout_seconds=self._timeout)
        self.sent_bytes = plan.sent.get(self.rank, 0)
        return RowBlock(owned(target, self.rank), {name: found[name] for name in names})

    def advantages(
        self, rows: Sequence[RowFacts], source: Sequence[int], numbers: Sequence[int]
    ) -> list[float]:
        """Return the advantages of some rows: sums of the groups travel, each made of the rewards that a rank has by ``source``."""
        names = {name: place for place, name in enumerate(dict.fromkeys(row.group for row in rows))}
        # A rollout counts once, however many rows it has.
        first = {row.rollout: number for number, row in reversed(list(enumerate(rows)))}
        mine = [n for n in owned(source, self.rank) if first[rows[n].rollout] == n]
        sums = GroupSums.of(
            [rows[n].reward for n in mine], [names[rows[n].group] for n in mine], len(names)
        )
        plan = plan_transfer(*sums_layouts(Mesh(dp=self.ranks), len(names)))
        found = self._group.exchange(
            plan, {SUMS: sums.array()[None]}, timeout_seconds=self._timeout
        )
        whole = GroupSums.merge([GroupSums.from_array(each) for each in found[SUMS]])
        mean, deviation = whole.mean, whole.deviation(ddof=0)
        places = [names[rows[number].group] for number in numbers]
        return [
            float((rows[number].reward - mean[place]) / deviation[place]) if deviation[place] else 0.0
            for number, place in zip(numbers, places, strict=True)
        ]  # fmt: skip

    def close(self) -> None:
        """Close the connections."""
        self._group.close()

    def _layout(
        self, names: Sequence[str], owners: Sequence[int], lengths: Sequence[int]
    ) -> Layout:
        mesh, shape = Mesh(dp=self.ranks), Ragged(lengths)
        return Layout(mesh, [TensorSpec(name, ARRAYS[name], shape, dp=Owned(owners)) for name in names])  # fmt: skip
