"""Kinds of actions that wait in a pool, for its list schedule: at most `MOST_KINDS`, and the rest of each class as one. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from contract.pool_demands import DemandRow
from domain.chunks import level_of
from scheduler.runtime.node_groups.pool_load import Pairs, PoolLoad, Takers

MOST_KINDS: Final = 8
_GPU: Final = "gpu"


class WaitingKind(NamedTuple):
    """Actions that wait and are alike."""

    needs: Pairs
    #: What they release at their end: the memory of an environment stays held.
    released: Pairs
    bound: bool
    seconds: float
    waiting: int
    slots: tuple[int, ...]
    takers: Takers
    #: Level of its chunk; None: no GPUs, or no such chunk.
    level: int | None


def kinds_of(load: PoolLoad) -> list[WaitingKind]:
    """Return what waits and some shape takes."""
    found = [
        _kind(load, row, slots, pairs or ())
        for row, slots, pairs in zip(load.rows, load.row_slots, load.row_pairs, strict=True)
        if row.waiting and any(slots)
    ]
    if len(found) <= MOST_KINDS:
        return found
    found = _joined(found, lambda kind: (kind.needs, kind.bound, kind.takers))
    if len(found) > MOST_KINDS:
        found = _joined(found, lambda kind: (kind.slots, kind.bound, kind.takers))
    work = sorted(found, key=lambda kind: -kind.waiting * kind.seconds)
    return work[:MOST_KINDS] + _joined(work[MOST_KINDS:], lambda kind: kind.takers)


def _kind(load: PoolLoad, row: DemandRow, slots: tuple[int, ...], released: Pairs) -> WaitingKind:
    needs = released
    if row.memory_bytes and not row.bound:
        needs = load.fitted(row.needs, row.memory_bytes)[0] or ()
    level = level_of(row.needs[_GPU]) if _GPU in row.needs else None
    return WaitingKind(
        needs, released, row.bound, row.seconds, row.waiting, slots, load.takers(slots), level
    )


def _joined(kinds: Iterable[WaitingKind], by: Callable[[WaitingKind], object]) -> list[WaitingKind]:
    """Return kinds with the same key as one: that of most work, with the count of all and their mean seconds."""
    groups: dict[object, list[WaitingKind]] = {}
    for kind in kinds:
        groups.setdefault(by(kind), []).append(kind)
    found = []
    for members in groups.values():
        count = sum(kind.waiting for kind in members)
        seconds = sum(kind.waiting * kind.seconds for kind in members) / count
        most = max(members, key=lambda kind: kind.waiting * kind.seconds)
        found.append(most._replace(waiting=count, seconds=seconds))
    return found
