"""Steps of an exchange as one rank takes them: what it sends to and receives from each other rank, by strategy.

Rules
1. ``nothing``, ``pairs`` and ``all-to-all`` are one step between the ranks themselves. In ``gather-scatter`` each rank sends all it has to the
   root, the lowest rank, in one connection, and the root passes it on: 2·(n - 1) connections instead of n·(n - 1).
2. After a rank is lost, the rest is what it was to send: each missing range of a target comes from where the new plan has it. Nothing else
   is sent again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from dispatcher.cost import ALL_TO_ALL, GATHER_SCATTER, NOTHING, PAIRS
from dispatcher.transfer_plan import Segment, TransferPlan
from dispatcher.transport.spans import Array
from dispatcher.transport.streams import TensorPiece, size

Arrays = Mapping[str, Any]
Pieces = dict[int, list[TensorPiece]]
STRATEGIES: Final = (NOTHING, PAIRS, ALL_TO_ALL, GATHER_SCATTER)


@dataclass(frozen=True)
class ExchangeStep:
    """What one rank sends and receives, by the other rank. Streams without bytes are left out."""

    sends: Pieces = field(default_factory=dict)
    receives: Pieces = field(default_factory=dict)

    def without_empty(self) -> ExchangeStep:
        """Return the step without streams that have no bytes."""
        return ExchangeStep(
            {rank: pieces for rank, pieces in self.sends.items() if size(pieces)},
            {rank: pieces for rank, pieces in self.receives.items() if size(pieces)},
        )


def copy_in_place(plan: TransferPlan, rank: int, have: Arrays, want: dict[str, Any]) -> None:
    """Copy what a rank has and keeps; an array that is already what is wanted is used as it is."""
    mine = plan.for_rank(rank)
    for segment in mine.copies:
        segment.write(want)[...] = segment.read(have)
    for name in mine.unchanged:
        want[name] = have[name]


def steps(
    plan: TransferPlan, strategy: str, rank: int, have: Arrays, want: Arrays
) -> list[ExchangeStep]:
    """Return the steps of a rank, one after the other."""
    if strategy == GATHER_SCATTER:
        return [step.without_empty() for step in _relayed(plan, rank, have, want)]
    mine = plan.for_rank(rank)
    sends = {to: _reading(segments, have) for to, segments in mine.sends.items()}
    receives = {sender: _writing(segments, want) for sender, segments in mine.receives.items()}
    return [ExchangeStep(sends, receives).without_empty()]


def rest(
    before: TransferPlan,
    after: TransferPlan,
    lost: frozenset[int] | None,
    rank: int,
    have: Arrays,
    want: Arrays,
) -> ExchangeStep:
    """Return what of the plan ``after`` brings what the ``lost`` ranks of ``before`` did not; None where nothing has arrived."""
    mine = after.for_rank(rank)
    sends = {
        to: _reading(_overlapping(segments, _missing(before, to, lost)), have)
        for to, segments in mine.sends.items()
    }
    missing = _missing(before, rank, lost)
    receives = {
        sender: _writing(_overlapping(segments, missing), want)
        for sender, segments in mine.receives.items()
    }
    return ExchangeStep(sends, receives).without_empty()


def _reading(segments: Iterable[Segment], arrays: Arrays) -> list[TensorPiece]:
    return [TensorPiece(segment.tensor, segment.read(arrays)) for segment in segments]


def _writing(segments: Iterable[Segment], arrays: Arrays) -> list[TensorPiece]:
    return [TensorPiece(segment.tensor, segment.write(arrays)) for segment in segments]


def _missing(
    plan: TransferPlan, rank: int, lost: frozenset[int] | None
) -> dict[str, list[Segment]]:
    """Return what a target should have had from lost ranks, by tensor."""
    found: dict[str, list[Segment]] = {}
    for sender, segments in plan.for_rank(rank).receives.items():
        if lost is None or sender in lost:
            for segment in segments:
                found.setdefault(segment.tensor, []).append(segment)
    return found


def _overlapping(
    segments: Sequence[Segment], missing: Mapping[str, Sequence[Segment]]
) -> list[Segment]:
    """Return the segments whose range of the target lacks something."""
    return [
        segment
        for segment in segments
        if any(_overlap(segment, other) for other in missing.get(segment.tensor, ()))
    ]


def _overlap(one: Segment, other: Segment) -> bool:
    ranges = zip(one.target, other.target, strict=True)
    return all(a.start < b.stop and b.start < a.stop for a, b in ranges)


def _relayed(plan: TransferPlan, rank: int, have: Arrays, want: Arrays) -> list[ExchangeStep]:
    """Return the steps of ``gather-scatter``: of a rank, one; of the root, gathering and then scattering."""
    root, mine = plan.ranks[0], plan.for_rank(rank)
    if rank != root:
        sends = [piece for to in sorted(mine.sends) for piece in _reading(mine.sends[to], have)]
        receives = [
            piece
            for sender in sorted(mine.receives)
            for piece in _writing(mine.receives[sender], want)
        ]
        return [ExchangeStep({root: sends}, {root: receives})]
    gathers: Pieces = {}
    scatters: Pieces = {}
    for sender in plan.ranks:
        theirs = plan.for_rank(sender).sends
        for to in sorted(theirs):
            if sender == root:
                passed = _reading(theirs[to], have)
            elif to == root:
                gathers.setdefault(sender, []).extend(_writing(mine.receives[sender], want))
                continue
            else:
                held: Array = np.empty(sum(segment.nbytes for segment in theirs[to]), np.uint8)
                passed = [TensorPiece(theirs[to][0].tensor, held)] if held.size else []
                gathers.setdefault(sender, []).extend(passed)
            scatters.setdefault(to, []).extend(passed)
    return [ExchangeStep(receives=gathers), ExchangeStep(sends=scatters)]
