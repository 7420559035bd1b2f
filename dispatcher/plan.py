"""Plan of a transfer: from a source layout, a target layout and hosts to what each rank copies, sends and receives.

Rules
1. Pure and deterministic: each rank computes the same plan, and `TransferPlan.digest` proves it before a byte leaves.
2. What a target rank already holds stays there. Every other byte crosses once, from one replica: one on the target's host where there is
   one, else that which leaves the busiest endpoint (the most that a rank sends or receives) least busy (`dispatcher.sharing`).
3. Ranks that are lost send nothing. Where a replica holds the same, it sends instead; else PlanError names tensor and ranks.
4. Both sides of a pair list its segments in the same order.

Everything is arrays: a thousand ranks with 32,768 samples take a fraction of a second.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from dispatcher.errors import PlanError
from dispatcher.geometry import counted
from dispatcher.layout import Layout
from dispatcher.overlaps import Moves, TensorFamily, taken
from dispatcher.placements import Integers, Ragged
from dispatcher.sharing import Demand, share
from dispatcher.tensor_spec import TensorSpec
from dispatcher.transfer_plan import (
    RankPlan,
    Segment,
    SegmentTable,
    TransferPlan,
    all_ranks,
    places_in,
)

__all__ = ["PlanError", "RankPlan", "Segment", "TransferPlan", "plan_transfer"]

#: Tensors with fewer entries are shared out one by one: a row of all of them would be too coarse a unit.
_FEW_ENTRIES: Final = 10_000


def plan_transfer(
    source: Layout,
    target: Layout,
    hosts: Mapping[int, str] | None = None,
    lost: Collection[int] = (),
) -> TransferPlan:
    """Plan how the tensors of ``target`` come from where ``source`` has them.

    ``hosts`` (rank → name) prefers replicas on the same host; ranks without one are hosts of their own. Ranks that are ``lost`` hold nothing any more.
    PlanError names the tensor that the layouts disagree on, or that was on lost ranks alone.
    """
    ranks = all_ranks(source, target)
    dead = sorted(set(lost) & set(ranks))
    for rank in dead:
        if rank in target.mesh:
            raise PlanError(
                "",
                f"rank {rank} is lost and wanted by the target; give a target without it",
                [rank],
            )
    given = hosts or {}
    named = {rank: given.get(rank, f"rank {rank}") for rank in ranks}
    families = _families(source, target)
    planner = _Planner(source, target, ranks, named, dead)
    crossing, local = planner.plan(families)
    return TransferPlan(source, target, named, tuple(dead), families, crossing, local)


@dataclass(frozen=True)
class _Crossing:
    """What crosses of one family: moves, in groups of those that the same ranks can send.

    For each group its rows, the bytes of one, and the number of its candidates; for each candidate, one group after the other, its place and its rows.
    """

    moves: Moves
    rows: Integers
    row_bytes: Integers
    counts: Integers
    candidates: Integers
    shares: Integers


class _Planner:
    """The steps of one planning; ranks are places in the sorted list of all."""

    def __init__(
        self,
        source: Layout,
        target: Layout,
        ranks: tuple[int, ...],
        hosts: Mapping[int, str],
        lost: list[int],
    ) -> None:
        self._ranks = ranks
        places = {rank: place for place, rank in enumerate(ranks)}
        names = {name: number for number, name in enumerate(sorted(set(hosts.values())))}
        self._host = np.array([names[hosts[rank]] for rank in ranks], np.int64)
        self._source = np.array([places[rank] for rank in source.mesh.ranks], np.int64)
        self._target = np.array([places[rank] for rank in target.mesh.ranks], np.int64)
        self._position = places_in(ranks, source)
        self._lost = np.isin(source.mesh.ranks, lost)

    def plan(self, families: list[TensorFamily]) -> tuple[SegmentTable, SegmentTable]:
        """Return what crosses and what is copied within ranks."""
        local, waiting = [], []
        received = np.zeros(len(self._ranks), np.int64)
        for number, family in enumerate(families):
            moves = family.moves()
            place = self._target[moves.position]
            holder = self._position[place]
            here = (holder >= 0) & (family.source_class[holder] == moves.cls)
            local.append(self._table(number, family, taken(moves, np.flatnonzero(here)), None))
            rest = self._by_senders(family, taken(moves, np.flatnonzero(~here)))
            nbytes = rest.moves.rows * family.entries[rest.moves.box] * family.itemsize
            np.add.at(received, self._target[rest.moves.position], nbytes)
            waiting.append((number, family, rest))
        self._share([rest for _, _, rest in waiting], int(received.max(initial=0)))
        crossing = [self._cut(number, family, rest) for number, family, rest in waiting]
        return self._ordered(crossing), self._ordered(local)

    def _by_senders(self, family: TensorFamily, moves: Moves) -> _Crossing:
        """Put the moves in the order of those that can send them: all replicas, or those on the target's host."""
        hosts = int(self._host.max(initial=0)) + 1
        alive = np.flatnonzero(~self._lost)
        held = family.source_class[alive] * hosts + self._host[self._source[alive]]
        order = np.argsort(held, kind="stable")
        held, holders = held[order], self._source[alive[order]]
        place = self._target[moves.position]
        wanted = moves.cls * hosts + self._host[place]
        near = np.searchsorted(held, wanted, "right") > np.searchsorted(held, wanted, "left")
        # The host of the target where a replica is there, else `hosts` for any.
        senders = moves.cls * (hosts + 1) + np.where(near, self._host[place], hosts)
        index = np.lexsort((place, moves.box, senders))
        moves, senders, near, wanted = (
            taken(moves, index),
            senders[index],
            near[index],
            wanted[index],
        )
        same = (senders[1:] == senders[:-1]) & (moves.box[1:] == moves.box[:-1])
        starts = np.flatnonzero(np.concatenate([[True], ~same]))[: len(senders)]
        cls, near, wanted = moves.cls[starts], near[starts], wanted[starts]
        first = np.searchsorted(held, np.where(near, wanted, cls * hosts), "left")
        last = np.searchsorted(held, np.where(near, wanted + 1, (cls + 1) * hosts), "left")
        absent = np.flatnonzero(first == last)
        if absent.size:
            self._no_replica(family, int(cls[absent[0]]))
        rows = np.add.reduceat(moves.rows, starts) if len(starts) else starts
        counts = last - first
        candidates = holders[np.repeat(first, counts) + counted(counts)]
        return _Crossing(
            moves,
            rows,
            family.entries[moves.box[starts]] * family.itemsize,
            counts,
            candidates,
            np.repeat(rows, counts),
        )

    def _share(self, crossings: list[_Crossing], received: int) -> None:
        """Fill in the rows of each candidate where there are several."""
        loads = np.zeros(len(self._ranks), np.int64)
        demands, places = [], []
        for crossing in crossings:
            begins = np.cumsum(crossing.counts) - crossing.counts
            alone = crossing.counts == 1
            nbytes = (crossing.rows * crossing.row_bytes)[alone]
            np.add.at(loads, crossing.candidates[begins[alone]], nbytes)
            for group in np.flatnonzero(~alone).tolist():
                chosen = slice(int(begins[group]), int(begins[group] + crossing.counts[group]))
                candidates = tuple(crossing.candidates[chosen].tolist())
                row_bytes, rows = int(crossing.row_bytes[group]), int(crossing.rows[group])
                demands.append(Demand(candidates, row_bytes, rows))
                places.append((crossing, chosen))
        shares = share(demands, loads.tolist(), received)
        for (crossing, chosen), rows_of_each in zip(places, shares, strict=True):
            crossing.shares[chosen] = rows_of_each

    def _no_replica(self, family: TensorFamily, cls: int) -> None:
        places = self._source[np.flatnonzero(family.source_class == cls)]
        ranks = sorted(self._ranks[place] for place in places.tolist())
        names = ", ".join(str(rank) for rank in ranks)
        raise PlanError(
            family.tensors[0].name,
            f"part of it was on rank {names} alone, which is lost, and has no replica; produce it again, or leave its samples out of the target",
            ranks,
        )

    def _cut(self, number: int, family: TensorFamily, crossing: _Crossing) -> SegmentTable:
        """Give the rows of each group to its candidates, one after the other."""
        moves, stops = crossing.moves, np.cumsum(crossing.shares)
        start = np.cumsum(moves.rows) - moves.rows
        first = np.searchsorted(stops, start, "right")
        last = np.searchsorted(stops, start + moves.rows - 1, "right")
        counts = last - first + 1
        move = np.repeat(np.arange(len(start)), counts)
        sender = counted(counts) + first[move]
        begins = np.concatenate([[0], stops])[sender]
        low = np.maximum(start[move], begins)
        high = np.minimum((start + moves.rows)[move], stops[sender])
        filled = np.flatnonzero(low < high)
        move, sender, low, high = move[filled], sender[filled], low[filled], high[filled]
        skipped = low - start[move]
        cut = taken(moves, move)
        cut = replace(
            cut,
            source_row=cut.source_row + skipped,
            target_row=cut.target_row + skipped,
            rows=high - low,
        )
        return self._table(number, family, cut, crossing.candidates[sender])

    def _table(
        self, number: int, family: TensorFamily, moves: Moves, senders: Integers | None
    ) -> SegmentTable:
        target = self._target[moves.position]
        return SegmentTable(
            np.full(len(target), number, np.int64),
            moves.box,
            target if senders is None else senders,
            target,
            moves.source_row,
            moves.target_row,
            moves.rows,
            moves.rows * family.entries[moves.box] * family.itemsize,
        )

    def _ordered(self, tables: list[SegmentTable]) -> SegmentTable:
        """Return all segments by sender, receiver and tensor, neighbours as one."""
        table = SegmentTable.joined(tables)
        order = np.argsort(table.source * len(self._ranks) + table.target, kind="stable")
        table = table.taken(order)
        if not len(order):
            return table
        joins = np.ones(len(order) - 1, bool)
        for column in (table.family, table.box, table.source, table.target):
            joins &= column[1:] == column[:-1]
        for column in (table.source_row, table.target_row):
            joins &= column[1:] == column[:-1] + table.rows[:-1]
        starts = np.concatenate([[0], np.flatnonzero(~joins) + 1])
        result = table.taken(starts)
        rows = np.add.reduceat(table.rows, starts)
        nbytes = np.add.reduceat(table.nbytes, starts)
        return replace(result, rows=rows, nbytes=nbytes)


def _families(source: Layout, target: Layout) -> list[TensorFamily]:
    """Group the tensors of the target by geometry. PlanError where both layouts differ in what a tensor is."""
    found: dict[tuple[int, int, str], list[TensorSpec]] = {}
    for name, wanted in target.tensors.items():
        held = source.tensors.get(name)
        if held is None:
            raise PlanError(
                name, f"the target wants it and the source has only {list(source.tensors)}"
            )
        if held.dtype != wanted.dtype:
            raise PlanError(
                name,
                f"is {held.dtype} in the source and {wanted.dtype} in the target; convert it first",
            )
        if held.shape != wanted.shape:
            raise PlanError(name, _difference(held, wanted))
        apart = name if math.prod(wanted.global_shape) <= _FEW_ENTRIES else ""
        key = (id(source.geometry(name)), id(target.geometry(name)), apart)
        found.setdefault(key, []).append(wanted)
    return [
        TensorFamily(source.geometry(tensors[0].name), target.geometry(tensors[0].name), tensors)
        for tensors in found.values()
    ]


def _difference(held: TensorSpec, wanted: TensorSpec) -> str:
    ours, theirs = held.shape, wanted.shape
    if isinstance(ours, Ragged) and isinstance(theirs, Ragged) and ours.inner == theirs.inner:
        if len(ours.lengths) != len(theirs.lengths):
            return f"has {len(ours.lengths)} samples in the source and {len(theirs.lengths)} in the target"
        first = int(np.flatnonzero(ours.lengths != theirs.lengths)[0])
        return (
            f"sample {first} has {ours.lengths[first]} tokens in the source and"
            f" {theirs.lengths[first]} in the target; both take the lengths of one batch"
        )
    return f"is {ours} in the source and {theirs} in the target; both take the shape of one batch"
