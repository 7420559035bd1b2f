"""Forks of a trajectory: a fork has a place in the line of its exec actions.

Rules
1. A fork follows the exec actions that were submitted before it, and precedes those submitted later.
2. While the node makes it, no exec action of the source or of a child is queued. It waits for a move of the source.
3. The children are open and hold their memory from the order to the node on. If the node fails, they
   are removed as if they had never been open; actions that were submitted to them meanwhile fail.
4. A trajectory that ends waits for its node to finish the fork; forks that wait are refused.
"""

from __future__ import annotations

from domain.decisions import Decision, ForkEnvironment, Refuse
from domain.ids import node_resource, trajectory_key
from scheduler.core.state.lifecycle import bind, enqueue_next
from scheduler.core.state.live import ForkRequest, LiveTrajectory
from scheduler.core.state.model import State
from scheduler.core.state.timers import TimerKind

#: Life of a trajectory that declares no environment.
DEFAULT_TTL_SECONDS = 7200.0

#: Code and detail of a `Refuse`.
Refusal = tuple[str, str]


def continue_line(state: State, trajectory: LiveTrajectory, decisions: list[Decision]) -> None:
    """Begin the fork of ``trajectory`` that is due, or queue its next exec action."""
    while trajectory.forks and not trajectory.forking and _is_due(trajectory):
        wanted = trajectory.forks[0]
        refusal = why_not(state, trajectory, wanted.children)
        if refusal is None:
            _begin(state, trajectory, wanted, decisions)
        else:
            trajectory.forks.pop(0)
            decisions.append(Refuse(wanted.request_id, wanted.reply_to, *refusal))
    if trajectory.line:
        enqueue_next(state, trajectory)


def _is_due(trajectory: LiveTrajectory) -> bool:
    after = trajectory.forks[0].after
    if trajectory.move is not None:
        return False
    return trajectory.busy is None and not any(each in trajectory.live for each in after)


def why_not(state: State, source: LiveTrajectory, children: tuple[str, ...]) -> Refusal | None:
    """Return why ``source`` cannot be forked into ``children`` now, if so."""
    if source.node is None:
        return "conflict", "nothing has been written or run in this trajectory yet"
    for name in children:
        key = trajectory_key(source.project, name)
        if key in state.trajectories or key in state.tombstones:
            return "conflict", f"a trajectory {name!r} exists already or has ended lately"
    node = state.supply.nodes[source.node]
    if not state.supply.continues(node):
        return "busy", f"node {node.name}, which has the environment, takes no new ones now"
    if not node.inventory.forks:
        return "conflict", (
            f"node {node.name}, which has the environment, cannot fork environments: use a node that runs commands"
            " under bubblewrap"
        )
    return _memory_missing(state, source, len(children))


def _memory_missing(state: State, source: LiveTrajectory, count: int) -> Refusal | None:
    each = source.memory_bytes
    if not (each and count) or source.node is None:
        return None
    ledger = state.supply.ledgers[node_resource("memory", source.node)]
    if not ledger.feasible(each * (count + 1)):
        has = f"{ledger.capacity} bytes of memory on node {source.node}"
        return "never_fits", f"{count + 1} environments of {each} bytes exceed the {has}"
    if not ledger.fits((each,) * count):
        left = f"{ledger.free} are free on node {source.node}"
        return "busy", f"{count} environments of {each} bytes need memory, and {left} now"
    if memory_awaited(state, source.pool):
        return "busy", "actions that came before wait for memory"
    return None


def memory_awaited(state: State, pool: str) -> bool:
    """Return whether an action that may run on any node of ``pool`` waits and needs memory."""
    return any(
        key.pool == pool and key.node is None and key.memory_bytes and queue.size
        for key, queue in state.queues.active.items()
    )


def _begin(
    state: State, source: LiveTrajectory, wanted: ForkRequest, decisions: list[Decision]
) -> None:
    assert source.node is not None  # else it is refused
    source.forking = wanted.request_id
    environment = source.environment
    ttl = environment.ttl_seconds if environment else DEFAULT_TTL_SECONDS
    keys = []
    for name in wanted.children:
        key = trajectory_key(source.project, name)
        child = LiveTrajectory(
            key, source.project, source.task, name, source.pool, state.now, state.now + ttl,
            environment, forking=wanted.request_id, door=wanted.door,
            metadata=dict(wanted.metadata) if wanted.door else {}, pause_seconds=source.pause_seconds,
            needed=None if source.needed is None else dict(source.needed),
        )  # fmt: skip
        state.add_trajectory(child)
        state.rollouts.note_trajectory(source.project, name, key)
        state.timers.set(child.expires_at, TimerKind.TRAJECTORY, key)
        bind(state, child, source.node)
        keys.append(key)
    decisions.append(
        ForkEnvironment(
            source.key, source.node, tuple(keys), wanted.request_id, wanted.reply_to, wanted.on_busy,
            environment, source.project, source.task, source.pool, wanted.metadata,
            wanted.snapshot,
        )
    )  # fmt: skip


def end_forks(
    state: State, trajectory: LiveTrajectory, why: str, decisions: list[Decision], *, lost: bool
) -> None:
    """Refuse the forks of a trajectory that ends; ``lost``: the node never finishes the present one."""
    kept = [each for each in trajectory.forks if not lost and each.request_id == trajectory.forking]
    for each in trajectory.forks:
        if each not in kept:
            detail = f"the trajectory is over: {why}"
            decisions.append(Refuse(each.request_id, each.reply_to, "conflict", detail))
    trajectory.forks = kept
    if lost:
        trajectory.forking = ""
