"""Rebalancing: an action that waits for its node goes, with its environment, to a node of the pool that has room for it now.

An environment binds its trajectory to a node, so nodes with long actions have queues while others are free. Rules

1. An action that is the first in a queue of its node and waits there for cores or other resources of the node is moved once it has waited as long as
   recent moves took (`patience`). So waiting and moving take at most twice what the better of both does, whenever the node
   would have been free (the ski-rental rule).
2. Its trajectory has nothing else that runs and no fork that is due. A process, a session or files in memory are seen by its node, which
   refuses; so it does for an environment above `MOST_BYTES`, since its copy takes longer than most waits. What stays is asked again later.
3. The target has room beside the moves on their way to it, and nothing waits there.
4. From the order on the action is in no queue. It keeps its place in the line of its trajectory, and is queued where the environment lives
   when the move ends, whatever its end (`state.moves`).

Each look goes over the queues once, and asks for a target for the `MOST_LOOKED` actions that have waited longest. Looks follow `patience`, and
only while an action waits for its node.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from domain.decisions import Decision
from scheduler.core.state.demand import Needs
from scheduler.core.state.lifecycle import leave_queue
from scheduler.core.state.live import LiveAction, LiveMove, LiveNode, LiveTrajectory
from scheduler.core.state.model import REBALANCE_SECONDS, State
from scheduler.core.state.moves import MOST_AT_ONCE, find_target, loads_of, may_move, order_move
from scheduler.core.state.queues import WaitQueue
from scheduler.core.state.timers import TimerKind

#: Subject of the timer of looks.
WAITING_QUEUES: Final = "queues"
#: Bounds of the wait before a move.
LEAST_PATIENCE: Final = 0.25
MOST_PATIENCE: Final = 10.0
#: Larger environments stay.
MOST_BYTES: Final = 32 << 20
#: Actions of one look for which a target is sought.
MOST_LOOKED: Final = 64


@dataclass(slots=True)
class _Look:
    """What one look has found."""

    #: Moves on their way, by each node that takes part.
    loads: Counter[str]
    #: Nodes where actions wait, or that an action of any node keeps its units for.
    wanted: set[str]
    #: Pool, needs and memory for which there is no target.
    none: set[tuple[str, Needs, int]] = field(default_factory=set)


def patience(state: State) -> float:
    """Return how long an action waits for its node before its environment moves."""
    return min(MOST_PATIENCE, max(LEAST_PATIENCE, state.rebalancing.seconds))


def look_later(state: State) -> None:
    """Set the time of the next look, unless it is set: an action waits for its node."""
    state.rebalancing.waits = False
    if state.rebalancing.due is None and len(state.supply.nodes) > 1 and _any_pool(state):
        _set_due(state, state.now + patience(state))


def rebalance(state: State, decisions: list[Decision]) -> None:
    """Begin moves for the actions that have waited for their node for long enough."""
    state.rebalancing.look = False
    waiting = _waiting(state)
    if not waiting:
        return
    wait = patience(state)
    patient = [each for each in waiting if each[1].queued_at + wait <= state.now]
    if patient:
        look = _Look(loads_of(state), _wanted_nodes(state))
        for queue, live in patient[:MOST_LOOKED]:
            _try(state, queue, live, look, decisions)
    impatient = waiting[len(patient) :]
    following = impatient[0][1].queued_at + wait if impatient else state.now + wait
    # Many queues would otherwise have a look each.
    _set_due(state, max(following, state.now + wait / 4))


def _any_pool(state: State) -> bool:
    return any(_rebalances(state, pool) for pool in state.config.pools)


def _rebalances(state: State, pool: str) -> bool:
    config = state.config.pools.get(pool)
    return config is not None and config.move_environments and config.rebalance_environments


def _set_due(state: State, at: float) -> None:
    state.rebalancing.due = at
    state.timers.set(at, TimerKind.MOVES, WAITING_QUEUES)


def _waiting(state: State) -> list[tuple[WaitQueue, LiveAction]]:
    """Return the queues whose first action waits for resources of its node, with it; longest wait first."""
    found = []
    for key, queue in state.queues.active.items():
        if key.node is None or key.held or not queue.size or queue.reason is None:
            continue
        code, subject, _ = queue.reason
        if code not in {"short_of", "behind"} or not (subject or "").endswith(f":{key.node}"):
            continue
        head = queue.head()
        if head is not None and _rebalances(state, key.pool):
            found.append((queue, head))
    found.sort(key=lambda each: (each[1].queued_at, each[1].order))
    return found


def _wanted_nodes(state: State) -> set[str]:
    active = state.queues.active.items()
    places = (key.node or queue.sticky_node for key, queue in active if queue.size)
    return {name for name in places if name is not None}


def _try(
    state: State,
    queue: WaitQueue,
    live: LiveAction,
    look: _Look,
    decisions: list[Decision],
) -> None:
    """Begin the move of the environment of ``live``, the first of ``queue``, if there is a target."""
    trajectory = state.trajectory_of(live)
    source = state.supply.nodes.get(queue.key.node or "")
    if trajectory is None or source is None or not _may_leave(state, queue, trajectory, source):
        return
    same = (queue.key.pool, queue.key.needs, trajectory.memory_bytes)
    if same in look.none or look.loads[source.name] >= MOST_AT_ONCE:
        return

    def has_room(name: str) -> bool:
        return name not in look.wanted and _fits(state, queue, name, look.loads[name] + 1)

    target, _ = find_target(state, trajectory, source, look.loads, has_room)
    if target is None:
        if not trajectory.copies:  # else it is the only one that may not go there
            look.none.add(same)
        return
    leave_queue(state, live)
    until = state.now + REBALANCE_SECONDS
    move = LiveMove(trajectory.moves + 1, target, until, rebalances=True)
    order_move(state, trajectory, move, decisions, MOST_BYTES)
    look.loads[source.name] += 1
    look.loads[target] += 1


def _may_leave(
    state: State, queue: WaitQueue, trajectory: LiveTrajectory, source: LiveNode
) -> bool:
    if not source.inventory.moves or not may_move(state, trajectory, source):
        return False
    return not _fits(state, queue, source.name, 1)  # else this pass grants it


def _fits(state: State, queue: WaitQueue, node: str, times: int) -> bool:
    """Return whether ``node`` has room for so many actions like those of ``queue``."""
    ledgers = state.supply.ledgers
    return all(
        (ledger := ledgers.get(resource)) is not None and ledger.fits((amount,) * times)
        for resource, amount in queue.on_node(node)
    )
