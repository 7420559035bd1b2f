"""Transfer plan: what each rank copies, sends and receives. `dispatcher.plan` makes it.

Lifetimes. A plan is immutable and serves each step whose layouts are equal; what one rank does is computed when it is asked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dispatcher.errors import LayoutError
from dispatcher.layout import Layout
from dispatcher.overlaps import Slices, TensorFamily
from dispatcher.placements import Integers

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Segment:
    """A part of one tensor that moves as one: slices of the local array of its sender and of its receiver.

    ``flat`` segments are slices of the arrays as flat ones, and so contiguous. The bytes of a segment are those of its view in C order.
    """

    tensor: str
    dtype: np.dtype[Any]
    nbytes: int
    flat: bool
    source: Slices
    target: Slices

    def read(self, arrays: Arrays) -> NDArray[Any]:
        """Return the view of a sender's arrays."""
        return self._view(arrays, self.source)

    def write(self, arrays: Arrays) -> NDArray[Any]:
        """Return the view of a receiver's arrays."""
        return self._view(arrays, self.target)

    def _view(self, arrays: Arrays, slices: Slices) -> NDArray[Any]:
        array = arrays[self.tensor]
        if not array.flags.c_contiguous:
            raise LayoutError(self.tensor, "is a strided array; pass np.ascontiguousarray of it")
        return array.reshape(-1)[slices] if self.flat else array[slices]


@dataclass(frozen=True)
class RankPlan:
    """What one rank does. Ranks are ascending; both sides of a pair have the same segments in the same order."""

    rank: int
    #: Tensors whose local array is as wanted already: it is returned as it is.
    unchanged: tuple[str, ...]
    #: From the rank's arrays of the source to its arrays of the target.
    copies: tuple[Segment, ...]
    sends: Mapping[int, tuple[Segment, ...]]
    receives: Mapping[int, tuple[Segment, ...]]

    def send_bytes(self, to: int) -> int:
        """Return the bytes for another rank."""
        return sum(segment.nbytes for segment in self.sends.get(to, ()))

    def receive_bytes(self, source: int) -> int:
        """Return the bytes from another rank."""
        return sum(segment.nbytes for segment in self.receives.get(source, ()))


@dataclass(frozen=True)
class SegmentTable:
    """Segments of all ranks as columns; ``source`` and ``target`` are places in the plan's ranks. Rows of bytes: all tensors of the family."""

    family: Integers
    box: Integers
    source: Integers
    target: Integers
    source_row: Integers
    target_row: Integers
    rows: Integers
    nbytes: Integers

    def columns(self) -> tuple[Integers, ...]:
        """Return the columns in their order."""
        return tuple(getattr(self, field.name) for field in fields(self))

    def taken(self, index: Any) -> SegmentTable:
        return SegmentTable(*(column[index] for column in self.columns()))

    @classmethod
    def joined(cls, tables: list[SegmentTable]) -> SegmentTable:
        empty = SegmentTable(*[np.zeros(0, np.int64)] * 8)
        together = zip(*(table.columns() for table in [empty, *tables]), strict=True)
        return cls(*(np.concatenate(columns) for columns in together))


class TransferPlan:
    """All transfers between two layouts. Made by `plan_transfer`."""

    def __init__(
        self,
        source: Layout,
        target: Layout,
        hosts: Mapping[int, str],
        lost: tuple[int, ...],
        families: list[TensorFamily],
        crossing: SegmentTable,
        local: SegmentTable,
    ) -> None:
        self.source = source
        self.target = target
        self.lost = lost
        self.ranks = all_ranks(source, target)
        #: Rank → host; a rank without a host in `plan_transfer` is a host of its own.
        self.hosts = dict(hosts)
        self._families = families
        self._crossing = crossing
        self._local = local
        self._index = {rank: index for index, rank in enumerate(self.ranks)}

    @cached_property
    def digest(self) -> str:
        """SHA-256 of layouts, hosts and transfers."""
        made = hashlib.sha256(f"{self.source.digest}{self.target.digest}".encode())
        made.update(repr((sorted(self.hosts.items()), self.lost)).encode())
        for table in (self._crossing, self._local):
            for column in table.columns():
                made.update(column.astype("<i8").tobytes())
        return made.hexdigest()

    @cached_property
    def bytes_crossing(self) -> int:
        """Bytes that go from one rank to another."""
        return int(self._crossing.nbytes.sum())

    @cached_property
    def bytes_in_place(self) -> int:
        """Bytes that target ranks hold already."""
        return int(self._local.nbytes.sum())

    @cached_property
    def bytes_bound(self) -> int:
        """The least that can cross: what target ranks want less what they hold."""
        wanted = sum(self.target.nbytes(rank) for rank in self.target.mesh.ranks)
        return wanted - self.bytes_in_place

    @cached_property
    def bytes_every_copy(self) -> int:
        """Bytes that would cross if each replica sent what one of them sends."""
        copies = np.zeros(len(self._crossing.rows), np.int64)
        for number, family in enumerate(self._families):
            chosen = np.flatnonzero(self._crossing.family == number)
            holders = np.bincount(family.source_class)
            position = self._source_positions[self._crossing.source[chosen]]
            copies[chosen] = holders[family.source_class[position]]
        return int((copies * self._crossing.nbytes).sum())

    @cached_property
    def sent(self) -> dict[int, int]:
        """Rank → bytes that it sends."""
        return self._by_rank(self._crossing.source)

    @cached_property
    def received(self) -> dict[int, int]:
        """Rank → bytes that it receives."""
        return self._by_rank(self._crossing.target)

    @property
    def busiest(self) -> tuple[int, int]:
        """The rank that sends or receives most, the smallest of equals, and its bytes."""
        loads = {rank: max(self.sent[rank], self.received[rank]) for rank in self.ranks}
        rank = max(self.ranks, key=lambda each: (loads[each], -each))
        return rank, loads[rank]

    @cached_property
    def pairs(self) -> tuple[Integers, Integers, Integers]:
        """Senders, receivers and bytes of the pairs that exchange any; ranks as places in ``ranks``, ascending."""
        size = len(self.ranks)
        keys, inverse = np.unique(
            self._crossing.source * size + self._crossing.target, return_inverse=True
        )
        sums = np.zeros(len(keys), np.int64)
        np.add.at(sums, inverse.reshape(-1), self._crossing.nbytes)
        return keys // size, keys % size, sums

    def pair_bytes(self) -> dict[tuple[int, int], int]:
        """Return (from, to) → bytes, ascending, for the pairs that exchange any."""
        senders, receivers, sums = (column.tolist() for column in self.pairs)
        return {
            (self.ranks[sender], self.ranks[receiver]): nbytes
            for sender, receiver, nbytes in zip(senders, receivers, sums, strict=True)
        }

    def for_rank(self, rank: int) -> RankPlan:
        """Return what one rank does."""
        if rank not in self._index:
            raise LayoutError("rank", f"{rank} is in neither layout")
        place, crossing = self._index[rank], self._crossing
        first, last = np.searchsorted(crossing.source, [place, place + 1])
        sent = crossing.taken(slice(int(first), int(last)))
        received = crossing.taken(np.flatnonzero(crossing.target == place))
        local = self._local.taken(np.flatnonzero(self._local.target == place))
        unchanged = self._unchanged(rank, local)
        return RankPlan(
            rank,
            unchanged,
            tuple(
                each
                for _, each in self._segments(local, local.source)
                if each.tensor not in unchanged
            ),
            self._by_peer(sent, sent.target),
            self._by_peer(received, received.source),
        )

    @cached_property
    def _source_positions(self) -> Integers:
        return places_in(self.ranks, self.source)

    def _by_rank(self, places: Integers) -> dict[int, int]:
        sums = np.zeros(len(self.ranks), np.int64)
        np.add.at(sums, places, self._crossing.nbytes)
        return dict(zip(self.ranks, sums.tolist(), strict=True))

    def _by_peer(self, table: SegmentTable, peers: Integers) -> dict[int, tuple[Segment, ...]]:
        found: dict[int, list[Segment]] = {}
        for peer, segment in self._segments(table, peers):
            found.setdefault(self.ranks[peer], []).append(segment)
        return {peer: tuple(segments) for peer, segments in sorted(found.items())}

    def _segments(self, table: SegmentTable, peers: Integers) -> Iterator[tuple[int, Segment]]:
        columns = zip(
            peers.tolist(),
            table.family.tolist(),
            table.box.tolist(),
            table.source_row.tolist(),
            table.target_row.tolist(),
            table.rows.tolist(),
            strict=True,
        )
        for peer, number, box, source_row, target_row, rows in columns:
            family = self._families[number]
            source, target = family.box_slices(box)
            entries = rows * int(family.entries[box])
            for tensor in family.tensors:
                yield (
                    peer,
                    Segment(
                        tensor.name,
                        tensor.dtype,
                        entries * tensor.dtype.itemsize,
                        family.flat,
                        (slice(source_row, source_row + rows), *source),
                        (slice(target_row, target_row + rows), *target),
                    ),
                )

    def _unchanged(self, rank: int, local: SegmentTable) -> tuple[str, ...]:
        """Return the tensors whose array of the source is, entry by entry, that of the target."""
        if rank not in self.source.mesh or rank not in self.target.mesh:
            return ()
        names = []
        for number, family in enumerate(self._families):
            mine = local.taken(np.flatnonzero(local.family == number))
            name = family.tensors[0].name
            shape = self.target.local_shape(name, rank)
            wanted = int(np.prod(shape, dtype=np.int64)) * family.itemsize
            if (
                self.source.local_shape(name, rank) == shape
                and int(mine.nbytes.sum()) == wanted
                and bool((mine.source_row == mine.target_row).all())
            ):
                names += [tensor.name for tensor in family.tensors]
        return tuple(sorted(names))


def all_ranks(source: Layout, target: Layout) -> tuple[int, ...]:
    """Return the ranks of both sides, ascending."""
    return tuple(sorted({*source.mesh.ranks, *target.mesh.ranks}))


def places_in(ranks: tuple[int, ...], layout: Layout) -> Integers:
    """Return place of a rank → its position in a layout's mesh, -1 where it has none."""
    mesh = layout.mesh
    return np.array([mesh.position(rank) if rank in mesh else -1 for rank in ranks], np.int64)
