"""Demand of pools, for node groups: rows of equal actions, from queues and nodes. Pure.

Neither queues nor nodes are read in full: a queue has equal minimum amounts, so a few of its actions give the predicted
duration of all, and of the actions that run each n-th is read, and counts n times.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from heapq import nlargest
from math import ceil, floor, gcd, log2
from typing import Final, NamedTuple

from contract.pool_demands import MOST_ROWS, DemandRow, PoolDemand
from domain.action import EXEC
from domain.chunks import CHUNKED, amount_at, level_of
from scheduler.core.state.durations import LEAST_SECONDS, expected_seconds, residual_seconds
from scheduler.core.state.live import LiveAction, LiveNode
from scheduler.core.state.model import State
from scheduler.core.state.queues import WaitQueue
from scheduler.runtime.loop.pool_nodes import nodes_alike

#: Actions of a pool that are read for one answer, about: of those that wait, and of those that run.
_MOST_READ: Final = 1_000
#: Of one queue.
_MOST_OF_QUEUE: Final = 32
#: Codes of `WaitReason`.
_NO_NODE_HELPS: Final = frozenset({"pool_paused", "share", "task_paused"})


class _Kind(NamedTuple):
    needs: tuple[tuple[str, int], ...]
    memory_bytes: int
    bound: bool
    #: Durations between 2**octave and twice as much.
    octave: int


@dataclass(slots=True)
class _Sum:
    """Sums over the actions of one kind."""

    waiting: float = 0.0
    running: float = 0.0
    seconds: float = 0.0
    residual: float = 0.0
    ending: float = 0.0

    @property
    def actions(self) -> float:
        return self.waiting + self.running


def pool_demands(state: State, pools: Collection[str]) -> dict[str, PoolDemand]:
    """Return the demand of each of ``pools``."""
    nodes: defaultdict[str, list[LiveNode]] = defaultdict(list)
    for node in state.supply.nodes.values():
        nodes[node.inventory.pool].append(node)
    there = Counter(
        each.pool for each in state.trajectories.values() if each.node and not each.removing
    )
    return {pool: _demand(state, pool, nodes[pool], there[pool]) for pool in pools}


def _demand(state: State, pool: str, nodes: list[LiveNode], trajectories: int) -> PoolDemand:
    sums: defaultdict[_Kind, _Sum] = defaultdict(_Sum)
    _add_waiting(state, pool, sums)
    _add_running(state, nodes, sums)
    capacity: defaultdict[str, Counter[str]] = defaultdict(Counter)
    memory_held = 0
    for node in nodes:
        memory = state.supply.node_ledger("memory", node.name)
        memory_held += 0 if memory is None else memory.capacity - memory.free
        if state.supply.usable(node):
            begins = node.name.rpartition("-")[0]
            capacity[begins].update(
                {kind: have.capacity for kind, have in node.inventory.resources.items()}
            )
    return PoolDemand(
        _rows(sums),
        {name: dict(have) for name, have in capacity.items()},
        memory_held,
        trajectories,
        nodes_alike(state.supply, [node for node in nodes if state.supply.usable(node)]),
    )


def _needed(needs: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """Return what an action takes at least: of GPUs a whole chunk."""
    for name, amount in needs:
        if name in CHUNKED and (level := level_of(amount)) is not None:
            rest = [each for each in needs if each[0] != name]
            return tuple(sorted([*rest, (name, amount_at(level))]))
    return needs


def _add_waiting(state: State, pool: str, sums: defaultdict[_Kind, _Sum]) -> None:
    queues = [
        queue
        for queue in state.queues.active.values()
        if queue.key.pool == pool and queue.size and _waits_for_nodes(state, queue)
    ]
    most = max(1, min(_MOST_OF_QUEUE, _MOST_READ // max(1, len(queues))))
    for queue in queues:
        key = queue.key
        found = queue.in_order(0, most, _stride(queue.size // most))
        weight = queue.size / len(found)
        for live in found:
            seconds = max(LEAST_SECONDS, expected_seconds(state, live))
            kind = _Kind(
                _needed(key.needs.on_node), key.memory_bytes, key.node is not None, _octave(seconds)
            )
            row = sums[kind]
            row.waiting += weight
            row.seconds += weight * seconds


def _waits_for_nodes(state: State, queue: WaitQueue) -> bool:
    """Whether a node may help: not those that wait for an operator, for their project's share, or for an API's limit."""
    if queue.key.held or not queue.key.needs.wants_node:
        return False
    reason = queue.reason
    return reason is None or not (
        reason.code in _NO_NODE_HELPS or reason.subject in state.config.resources
    )


def _add_running(state: State, nodes: list[LiveNode], sums: defaultdict[_Kind, _Sum]) -> None:
    count = sum(len(state.supply.on_node.get(node.name, ())) for node in nodes)
    every = _stride(ceil(count / _MOST_READ))
    for live in _running(state, nodes, every):
        left = residual_seconds(state, live)
        since = live.started_at if live.started_at is not None else live.granted_at
        lasts = left + max(0.0, state.now - (state.now if since is None else since))
        seconds = max(LEAST_SECONDS, expected_seconds(state, live))
        # Its environment is there already, but for the first action of a trajectory: one of many. Calls of services go anywhere.
        bound = live.action.kind is EXEC and live.action.trajectory is not None
        kind = _Kind(_needed(live.needs.on_node), 0, bound, _octave(seconds))
        row = sums[kind]
        row.running += every
        row.seconds += every * seconds
        row.residual += every * left
        row.ending += every / lasts


def _running(state: State, nodes: list[LiveNode], every: int) -> Iterator[LiveAction]:
    """Yield each ``every``-th action that holds units on ``nodes``."""
    number = 0
    for node in nodes:
        for action_id in sorted(state.supply.on_node.get(node.name, ())):
            number += 1
            if number % every == 0 and (live := state.actions.get(action_id)) is not None:
                yield live


def _stride(longest: int) -> int:
    """Return a step of at most that, in which no short cycle of kinds of actions meets itself."""
    while longest > 1 and gcd(longest, 30) > 1:
        longest -= 1
    return max(1, longest)


def _octave(seconds: float) -> int:
    return floor(log2(seconds))


def _rows(sums: dict[_Kind, _Sum]) -> list[DemandRow]:
    """Return `MOST_ROWS` rows at most, those with most work first."""
    if len(sums) <= MOST_ROWS:
        kept, rest = list(sums.items()), []
    else:
        largest = nlargest(MOST_ROWS - 1, sums.items(), key=lambda item: item[1].seconds)
        names = {kind for kind, _ in largest}
        kept, rest = largest, [item for item in sums.items() if item[0] not in names]
    rows = [
        _row(dict(kind.needs), kind.memory_bytes, kind.bound, found)
        for kind, found in sorted(kept, key=lambda item: -item[1].seconds)
    ]
    if rest:
        rows.append(_merged(rest))
    return rows


def _merged(items: list[tuple[_Kind, _Sum]]) -> DemandRow:
    """Return one row with the means of several; they count as bound if most of them are."""
    total, bound, memory = _Sum(), 0.0, 0.0
    needs: Counter[str] = Counter()
    for kind, found in items:
        total.waiting += found.waiting
        total.running += found.running
        total.seconds += found.seconds
        total.residual += found.residual
        total.ending += found.ending
        bound += found.actions if kind.bound else 0.0
        memory += found.actions * kind.memory_bytes
        for name, amount in kind.needs:
            needs[name] += round(found.actions * amount)
    count = total.actions
    means = {name: round(amount / count) for name, amount in needs.items()}
    return _row(means, round(memory / count), 2 * bound > count, total)


def _row(needs: dict[str, int], memory_bytes: int, bound: bool, found: _Sum) -> DemandRow:
    running = found.running
    return DemandRow(
        needs, memory_bytes, bound, found.seconds / found.actions, round(found.waiting), round(running),
        found.residual / running if running else 0.0, found.ending,
    )  # fmt: skip
