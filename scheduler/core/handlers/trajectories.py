"""Tasks, trajectories, their environments and files."""

from __future__ import annotations

from domain.action import ActionState, EnvironmentSpec, Kind, Outcome
from domain.decisions import Decision, Refuse
from domain.events import (
    EnvironmentRemoved,
    FileRequested,
    TaskOpened,
    TrajectoryFinished,
    TrajectoryOpened,
    TrajectoryRenewed,
)
from domain.ids import ResourceId, node_resource, task_key, trajectory_key
from scheduler.core.state.completion import close_if_idle, copy_gone, environment_gone, finish
from scheduler.core.state.forks import DEFAULT_TTL_SECONDS, end_forks, memory_awaited
from scheduler.core.state.lifecycle import abort, bind, enqueue, leave_queue, unbind
from scheduler.core.state.live import LiveTrajectory
from scheduler.core.state.model import State
from scheduler.core.state.moves import end_move, file_transfer
from scheduler.core.state.rollouts import over_mark, owner_of
from scheduler.core.state.timers import TimerKind


def task_opened(state: State, event: TaskOpened, decisions: list[Decision]) -> None:
    """Bind a task to a pool; open trajectories stay in theirs."""
    if event.pool:
        state.steering.pools[task_key(event.project, event.task)] = event.pool


def default_pool(state: State, project: str, task: str) -> str:
    """Return the pool of an action that names none: its task's, else its project's."""
    if state.steering.pools and (bound := state.steering.pools.get(task_key(project, task))):
        return bound
    owner = state.config.projects.get(project)
    return owner.default_pool if owner else "default"


def open_trajectory(
    state: State,
    project: str,
    task: str,
    name: str,
    pool: str,
    environment: EnvironmentSpec | None,
) -> LiveTrajectory:
    """Return the trajectory ``name``, which is opened if it is new.

    An environment may be declared until an action has run in it; later declarations are ignored.
    """
    key = trajectory_key(project, name)
    trajectory = state.trajectories.get(key)
    if trajectory is None:
        ttl = environment.ttl_seconds if environment else DEFAULT_TTL_SECONDS
        trajectory = LiveTrajectory(
            key, project, task, name, pool, state.now, state.now + ttl, environment
        )
        config = state.config.pools.get(pool)
        if config is not None and config.move_to_smaller:
            trajectory.needed = {}
        state.add_trajectory(trajectory)
        state.rollouts.note_trajectory(project, name, key)
        state.timers.set(trajectory.expires_at, TimerKind.TRAJECTORY, key)
    elif environment is not None and _declarable(trajectory):
        trajectory.environment = environment
        trajectory.expires_at = trajectory.opened_at + environment.ttl_seconds
        state.timers.set(trajectory.expires_at, TimerKind.TRAJECTORY, key)
        _requeue(state, trajectory)
    return trajectory


def why_over(state: State, project: str, name: str) -> str:
    """Return why a trajectory of this name cannot be opened: its rollout is over; empty if it can."""
    owner = owner_of(name)
    over = None if owner is None else state.tombstones.get(over_mark(project, owner))
    return "" if over is None else over.why


def _declarable(trajectory: LiveTrajectory) -> bool:
    """Return whether the environment of ``trajectory`` may still be declared."""
    return trajectory.environment is None and trajectory.node is None and trajectory.closing is None


def _requeue(state: State, trajectory: LiveTrajectory) -> None:
    """Move the first action of a trajectory to the queue that it belongs in now."""
    if trajectory.line and trajectory.busy is None:
        live = state.actions[trajectory.line[0]]
        leave_queue(state, live)
        enqueue(state, live, trajectory)


def opened(state: State, event: TrajectoryOpened, decisions: list[Decision]) -> None:
    """Open a trajectory before its first action."""
    key = trajectory_key(event.project, event.trajectory)
    if key in state.tombstones or why_over(state, event.project, event.trajectory):
        return
    pool = event.pool or default_pool(state, event.project, event.task)
    trajectory = open_trajectory(
        state, event.project, event.task, event.trajectory, pool, event.environment
    )
    if event.door:
        trajectory.door, trajectory.metadata = event.door, dict(event.metadata)
    trajectory.pause_seconds = event.pause_seconds or trajectory.pause_seconds


def renewed(state: State, event: TrajectoryRenewed, decisions: list[Decision]) -> None:
    """Move the end of a trajectory, pause or resume it; one that ends is not changed."""
    trajectory = state.trajectories.get(trajectory_key(event.project, event.trajectory))
    if trajectory is None or trajectory.closing is not None:
        return
    if event.paused is not None:
        trajectory.paused_at = state.now if event.paused else None
    if event.ttl_seconds is None:
        return
    ends = state.now + event.ttl_seconds
    _end_at(state, trajectory, max(ends, trajectory.expires_at) if event.only_later else ends)


def end_of_life(state: State, trajectory: LiveTrajectory, decisions: list[Decision]) -> None:
    """Close a trajectory whose time to live is over; pause it first where that was chosen."""
    if trajectory.pause_seconds and trajectory.paused_at is None:
        trajectory.paused_at = state.now
        _end_at(state, trajectory, state.now + trajectory.pause_seconds)
    else:
        close(state, trajectory, "its time to live is over", decisions)


def _end_at(state: State, trajectory: LiveTrajectory, at: float) -> None:
    trajectory.expires_at = at
    state.timers.set(at, TimerKind.TRAJECTORY, trajectory.key)


def finished(state: State, event: TrajectoryFinished, decisions: list[Decision]) -> None:
    """Close a trajectory at the trainer's request."""
    trajectory = state.trajectories.get(trajectory_key(event.project, event.trajectory))
    if trajectory is not None:
        close(state, trajectory, event.reason, decisions)


def close(state: State, trajectory: LiveTrajectory, reason: str, decisions: list[Decision]) -> None:
    """Cancel what waits, end what runs, then remove the environment. Repeats do nothing."""
    if trajectory.closing is not None:
        return
    trajectory.closing = reason
    end_move(state, trajectory, reason, decisions)
    end_forks(state, trajectory, reason, decisions, lost=False)
    for action_id in sorted(trajectory.live):
        live = state.actions[action_id]
        if live.state is ActionState.QUEUED or live.action.kind is Kind.LEASE:
            finish(state, live, Outcome.CANCELLED, decisions, detail=f"trajectory: {reason}")
        else:
            abort(live, Outcome.CANCELLED, f"trajectory: {reason}", decisions)
    if trajectory.key in state.trajectories:
        close_if_idle(state, trajectory, decisions)


def lose_environment(
    state: State, trajectory: LiveTrajectory, why: str, decisions: list[Decision]
) -> None:
    """End a trajectory whose environment is lost with the state of its node; nothing is left to remove."""
    gone_with = trajectory.node
    end_move(state, trajectory, why, decisions, gone=gone_with or "")
    unbind(state, trajectory)
    trajectory.lost = trajectory.lost or trajectory.closing is None
    trajectory.closing = trajectory.closing or f"its environment was lost: {why}"
    trajectory.removing = False
    end_forks(state, trajectory, why, decisions, lost=True)
    _end_all(state, trajectory, gone_with, why, decisions)


def abandon_environment(
    state: State, trajectory: LiveTrajectory, why: str, decisions: list[Decision]
) -> None:
    """End a trajectory whose node is dead. Repeats do nothing.

    The node is ordered to remove the environment, whose memory is held until the node confirms.
    """
    ended = trajectory.closing is not None
    if ended and not trajectory.forking:
        return
    end_forks(state, trajectory, why, decisions, lost=True)
    if ended:
        close_if_idle(state, trajectory, decisions)
    else:
        trajectory.closing, trajectory.lost = f"its environment was lost: {why}", True
        _end_all(state, trajectory, trajectory.node, why, decisions)


def _end_all(
    state: State,
    trajectory: LiveTrajectory,
    gone_with: str | None,
    why: str,
    decisions: list[Decision],
) -> None:
    detail = f"environment lost: {why}"
    for action_id in sorted(trajectory.live):
        live = state.actions[action_id]
        if live.action.kind is Kind.LEASE:
            finish(state, live, Outcome.CANCELLED, decisions, detail=detail)
        elif live.state is ActionState.QUEUED:
            finish(state, live, Outcome.INFRA_FAILED, decisions, detail=detail)
        elif live.node == gone_with:
            finish(state, live, Outcome.UNKNOWN, decisions, detail=detail)
        else:
            abort(live, Outcome.CANCELLED, detail, decisions)
    if trajectory.key in state.trajectories:
        close_if_idle(state, trajectory, decisions)


def environment_removed(state: State, event: EnvironmentRemoved, decisions: list[Decision]) -> None:
    """Forget a trajectory whose environment its node has removed, or a copy of one that was moved."""
    trajectory = state.trajectories.get(event.trajectory)
    if trajectory is None:
        return
    if event.node in trajectory.copies:
        copy_gone(state, trajectory, event.node)
    elif trajectory.removing and trajectory.node == event.node:
        environment_gone(state, trajectory)


def file_requested(state: State, event: FileRequested, decisions: list[Decision]) -> None:
    """Send a file transfer to the trajectory's node; the first put places the trajectory."""
    key = trajectory_key(event.project, event.trajectory)
    trajectory = state.trajectories.get(key)
    refusal = None
    if trajectory is None:
        refusal = "not_found", f"there is no open trajectory {event.trajectory!r}"
    elif trajectory.closing is not None:
        refusal = "conflict", f"the trajectory is over: {trajectory.closing}"
    elif trajectory.node is None and event.verb == "get":
        refusal = "not_found", "nothing has been written or run in this trajectory yet"
    elif trajectory.node is None and not _place(state, trajectory):
        refusal = "busy", "no node has room for this environment now"
    elif trajectory.move is not None:
        trajectory.file_requests.append(event)
        return
    elif trajectory.node is not None and not _reachable(state, trajectory.node):
        refusal = "busy", f"node {trajectory.node} is silent"
    if refusal is not None:
        decisions.append(Refuse(event.request_id, event.reply_to, *refusal))
        return
    assert trajectory is not None  # else it was refused
    assert trajectory.node is not None
    decisions.append(file_transfer(trajectory, trajectory.node, event))


def _reachable(state: State, node: str) -> bool:
    return state.supply.nodes[node].lost_at is None


def _place(state: State, trajectory: LiveTrajectory) -> bool:
    """Bind a trajectory to the least loaded node, unless a waiting action needs memory; return if bound."""
    memory = trajectory.memory_bytes
    fitting = (
        node.name
        for node in state.supply.least_loaded(trajectory.pool)
        if state.supply.usable(node)
        and (not memory or _has_room(state, node_resource("memory", node.name), memory))
    )
    name = next(fitting, None)
    if name is None or (memory and memory_awaited(state, trajectory.pool)):
        return False
    bind(state, trajectory, name)
    _requeue(state, trajectory)
    return True


def _has_room(state: State, resource: ResourceId, amount: int) -> bool:
    ledger = state.supply.ledgers.get(resource)
    return ledger is not None and ledger.fits((amount,))
