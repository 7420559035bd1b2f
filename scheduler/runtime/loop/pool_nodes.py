"""Nodes of a pool as a small histogram: an action runs on one node, so the sum of what is free does not say whether it fits. Pure.

Nodes are alike if they belong to one group, have the same capacity, and as much free within a quarter of an octave (memory: an octave). A bar
has the means of its nodes, rounded down. One pass over the nodes; at most `MOST_BARS` bars, and one for the rest of each shape.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from contract.pool_demands import MOST_BARS, NodesAlike
from domain.chunks import CHUNKED
from domain.ids import node_resource
from domain.ports import ChunkedLedger
from domain.resources import MILLI
from scheduler.core.state.live import LiveNode
from scheduler.core.state.supply import Supply

_MEMORY = "memory"


class _Shape(NamedTuple):
    begins: str
    #: Of memory about: equal machines differ by some pages.
    capacity: tuple[tuple[str, int], ...]


class _Bar:
    """Sums over nodes that are alike."""

    __slots__ = ("capacity", "chunks", "count", "free")

    def __init__(self, kinds: int) -> None:
        self.count = 0
        self.capacity, self.free = [0] * kinds, [0] * kinds
        self.chunks: tuple[int, ...] = ()

    def add(
        self, capacity: Iterable[int], free: Iterable[int], chunks: tuple[int, ...], count: int = 1
    ) -> None:
        """Add nodes, by the sums of what they have."""
        self.count += count
        for position, amount in enumerate(capacity):
            self.capacity[position] += amount
        for position, amount in enumerate(free):
            self.free[position] += amount
        self.chunks = chunks

    def nodes(self, shape: _Shape) -> NodesAlike:
        """Return the bar as it is answered."""
        names = [name for name, _ in shape.capacity]
        capacity = [amount // self.count for amount in self.capacity]
        free = [amount // self.count for amount in self.free]
        return NodesAlike(
            shape.begins, self.count, dict(zip(names, capacity, strict=True)), dict(zip(names, free, strict=True)),
            self.chunks,
        )  # fmt: skip


def nodes_alike(supply: Supply, nodes: Iterable[LiveNode]) -> list[NodesAlike]:
    """Return the histogram of ``nodes``, which take work; those with many nodes first."""
    bars: dict[tuple[_Shape, tuple[int, ...], tuple[int, ...]], _Bar] = {}
    for node in nodes:
        name = node.name
        capacity, free, names, rough = [], [], [], []
        chunks: tuple[int, ...] = ()
        for kind in node.inventory.resources:
            ledger = supply.ledgers.get(node_resource(kind, name))
            if ledger is None:
                continue
            amount, left = ledger.capacity, ledger.free
            if kind in CHUNKED and isinstance(ledger, ChunkedLedger):
                chunks = tuple(ledger.counts)
            names.append((kind, _about(amount) if kind == _MEMORY else amount))
            capacity.append(amount)
            free.append(left)
            rough.append(_octave(left) if kind == _MEMORY else _about(left))
        key = _Shape(name.rpartition("-")[0], tuple(names)), tuple(rough), chunks
        bar = bars.get(key)
        if bar is None:
            bar = bars[key] = _Bar(len(names))
        bar.add(capacity, free, chunks)
    return _answered(bars)


def _answered(
    bars: dict[tuple[_Shape, tuple[int, ...], tuple[int, ...]], _Bar],
) -> list[NodesAlike]:
    sorted_bars = sorted(bars.items(), key=lambda item: -item[1].count)
    rest: dict[_Shape, _Bar] = {}
    for (shape, _, _), bar in sorted_bars[MOST_BARS:]:
        mean = rest.setdefault(shape, _Bar(len(shape.capacity)))
        mean.add(bar.capacity, bar.free, (), bar.count)
    found = [bar.nodes(key[0]) for key, bar in sorted_bars[:MOST_BARS]]
    return found + [bar.nodes(shape) for shape, bar in rest.items()]


@lru_cache(maxsize=4096)
def _about(amount: int) -> int:
    """Return an amount rounded down to a quarter of its octave, in thousandths: whole cores up to eight stay whole."""
    units = amount // MILLI
    if units <= 0:
        return 0 if amount < MILLI // 2 else MILLI // 2
    step = 1 << max(0, units.bit_length() - 3)
    return units // step * step * MILLI


@lru_cache(maxsize=4096)
def _octave(amount: int) -> int:
    return max(0, amount).bit_length()
