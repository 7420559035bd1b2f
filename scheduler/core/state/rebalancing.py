"""Rebalancing: an action that waits for its node goes, with its environment, to a node of the pool that has room for it now.

An environment binds its trajectory to a node, so nodes with long actions have queues while others are free. Rules

1. An action that waits for cores or other resources of its node, and for nothing else, is moved once it has waited as long as recent moves took
   (`patience`). So waiting and moving take at most twice what the better of both does, whenever the node would have been free (the
   ski-rental rule). Of each queue the first few actions are considered: the environment of the very first may have to stay.
2. Its trajectory has nothing that runs, and no fork. A process, a session or files in memory are seen by its node, which
   refuses; so it does for an environment above `MOST_BYTES`, since its copy takes longer than most waits. What stays is asked again after a
   pause, which is apart from that of drains.
3. The target has room beside the moves on their way to it, and no action waits there for its resources.
4. From the order on the action is in no queue, and claims its needs on the target in each cycle, so that none that arrives later takes its place. It
   keeps its place in the line of its trajectory, and is queued where the environment lives when the move ends, whatever its end
   (`state.moves`).

A look follows a cycle, so what waits then has no room. It goes over the queues once, over the nodes of a pool once, and seeks a target for `MOST_SOUGHT`
actions without success at most. Looks are at least `LEAST_PATIENCE` apart. Without a node that has free cores the next one follows the next cycle.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from domain.decisions import Decision
from domain.ids import ResourceId, TrajectoryKey, node_resource
from scheduler.core.state.demand import Need
from scheduler.core.state.forks import memory_awaited
from scheduler.core.state.lifecycle import leave_queue
from scheduler.core.state.live import LiveAction, LiveMove, LiveNode, LiveTrajectory, Order
from scheduler.core.state.model import REBALANCE_SECONDS, State
from scheduler.core.state.moves import MOST_AT_ONCE, loads_of, may_move, order_move, takes
from scheduler.core.state.queues import WaitQueue
from scheduler.core.state.timers import TimerKind

#: Subject of the timer of looks.
WAITING_QUEUES: Final = "queues"
#: Bounds of the wait before a move.
LEAST_PATIENCE: Final = 0.25
MOST_PATIENCE: Final = 10.0
#: Larger environments stay.
MOST_BYTES: Final = 32 << 20
#: Actions of one look for which no target is found.
MOST_SOUGHT: Final = 32
#: Actions at the head of a queue that are considered.
_FIRST: Final = 4
_SHORT: Final = frozenset({"short_of", "behind"})


@dataclass(slots=True)
class _QueueLook:
    """What one look has found."""

    #: Moves on their way, by each node that takes part.
    loads: Counter[str]
    #: Amounts that they claim on their targets.
    claims: dict[ResourceId, list[int]]
    #: Nodes of the pool where an action may go, least loaded first.
    targets: list[LiveNode] = field(default_factory=list)
    memory_is_awaited: bool = False
    #: Actions for which no target was found.
    sought: int = 0


def patience(state: State) -> float:
    """Return how long an action waits for its node before its environment moves."""
    return min(MOST_PATIENCE, max(LEAST_PATIENCE, state.rebalancing.seconds))


def claims_of_moves(state: State) -> dict[TrajectoryKey, list[Need]]:
    """Return what actions need where their environments move to, by trajectory."""
    found = {}
    for key in sorted(state.moves.active):
        trajectory = state.trajectories[key]
        move, line = trajectory.move, trajectory.line
        if move is None or not move.target or move.given_up:
            continue
        if move.claims and any(each in trajectory.live for each in line):
            found[key] = [(node_resource(kind, move.target), n) for kind, n in move.claims]
    return found


def look_later(state: State) -> None:
    """Set the time of the next look, unless it is set: an action waits for its node."""
    state.rebalancing.waits = False
    if state.rebalancing.due is None and len(state.supply.nodes) > 1:
        _set_due(state, state.now + LEAST_PATIENCE)


def rebalance(state: State, decisions: list[Decision]) -> bool:
    """Begin moves for the actions that have waited for their node for long enough; return whether any began."""
    state.rebalancing.look = state.rebalancing.waits = False
    waiting = sorted(_waiting(state), key=lambda each: (each[0].key.pool, *each[1:]))
    look, began, due = _QueueLook(loads_of(state), _claims(state)), False, None
    wait = patience(state)
    for pool, queues in groupby(waiting, key=lambda each: each[0].key.pool):
        look.targets = _targets(state, pool, look)
        if not look.targets:
            continue
        look.memory_is_awaited = memory_awaited(state, pool)
        for queue, since, _ in queues:
            at = max(since + wait, state.now + LEAST_PATIENCE)
            due = at if due is None else min(due, at)
            if since + wait <= state.now and look.sought < MOST_SOUGHT:
                began |= _try(state, queue, look, decisions)
    if due is not None:
        _set_due(state, due)
    return began


def _set_due(state: State, at: float) -> None:
    state.rebalancing.due = at
    state.timers.set(at, TimerKind.MOVES, WAITING_QUEUES)


def _waiting(state: State) -> Iterator[tuple[WaitQueue, float, Order]]:
    """Yield the queues whose first action waits for resources of its node, since when, and its order."""
    for key, queue in state.queues.active.items():
        if key.pool not in state.rebalancing.pools or not _waits_for_node(state, queue, key.node):
            continue
        source, head = state.supply.nodes.get(key.node or ""), queue.head()
        if source is not None and source.inventory.moves and head is not None:
            yield queue, head.queued_at, head.order


def _waits_for_node(state: State, queue: WaitQueue, node: str | None) -> bool:
    """Return whether actions of ``queue`` wait for resources of ``node``."""
    if node is None or not queue.size or queue.reason is None or queue.key.held:
        return False
    code, subject, _ = queue.reason
    pool = state.config.pools.get(queue.key.pool)
    is_paused = pool is not None and pool.paused
    return code in _SHORT and not is_paused and (subject or "").endswith(f":{node}")


def _claims(state: State) -> dict[ResourceId, list[int]]:
    found: defaultdict[ResourceId, list[int]] = defaultdict(list)
    for needs in claims_of_moves(state).values():
        for resource, amount in needs:
            found[resource].append(amount)
    return found


def _targets(state: State, pool: str, look: _QueueLook) -> list[LiveNode]:
    """Return the nodes of ``pool`` that have free cores and take environments, and where no action waits, least loaded first."""
    wanted = {
        node
        for queue in state.queues.active.values()
        if _waits_for_node(state, queue, node := queue.key.node or queue.sticky_node)
    }
    return [
        node
        for node in state.supply.least_loaded(pool)
        if node.name not in wanted
        and look.loads[node.name] < MOST_AT_ONCE
        and (cores := state.supply.node_ledger("cpu", node.name)) is not None
        and cores.free > 0
        and node.inventory.moves
        and state.supply.usable(node)
    ]


def _try(state: State, queue: WaitQueue, look: _QueueLook, decisions: list[Decision]) -> bool:
    """Begin the move of the environment of one of the first actions of ``queue``; return whether there is a target for one."""
    source = state.supply.nodes[queue.key.node or ""]
    if look.loads[source.name] >= MOST_AT_ONCE or not _has_the_rest(state, queue):
        return False
    wait = patience(state)
    for live in queue.in_order(0, _FIRST):
        trajectory = state.trajectory_of(live)
        if trajectory is None or live.queued_at + wait > state.now:
            continue
        if state.now < trajectory.waits_until or not may_move(state, trajectory, source):
            continue
        target = _find(state, queue, trajectory, source, look)
        if target is not None:
            _begin(state, live, trajectory, target, look, decisions)
            return True
    return False


def _has_the_rest(state: State, queue: WaitQueue) -> bool:
    """Return whether actions of ``queue`` lack nothing cluster-wide."""
    ledgers = state.supply.ledgers
    return all(
        (ledger := ledgers.get(resource)) is not None and ledger.fits((amount,))
        for resource, amount in queue.in_cluster
    )


def _find(
    state: State, queue: WaitQueue, trajectory: LiveTrajectory, source: LiveNode, look: _QueueLook
) -> str | None:
    if trajectory.memory_bytes and look.memory_is_awaited:
        return None
    ledgers = state.supply.ledgers
    for node in look.targets:
        if node is source or look.loads[node.name] >= MOST_AT_ONCE:
            continue
        has_room = all(
            (ledger := ledgers.get(resource)) is not None
            and ledger.fits((*look.claims.get(resource, ()), amount))
            for resource, amount in queue.on_node(node.name)
        )
        if has_room and takes(state, trajectory, source, node):
            return node.name
    look.sought += 1
    return None


def _begin(
    state: State,
    live: LiveAction,
    trajectory: LiveTrajectory,
    target: str,
    look: _QueueLook,
    decisions: list[Decision],
) -> None:
    assert live.queue is not None
    assert trajectory.node is not None
    needs = live.queue.needs.on_node
    leave_queue(state, live)
    until = state.now + REBALANCE_SECONDS
    move = LiveMove(trajectory.moves + 1, target, until, claims=needs)
    order_move(state, trajectory, move, decisions, MOST_BYTES)
    look.loads[trajectory.node] += 1
    look.loads[target] += 1
    for kind, amount in needs:
        look.claims.setdefault(node_resource(kind, target), []).append(amount)
