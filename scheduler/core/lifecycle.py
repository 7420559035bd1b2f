"""What happens to one action: queued, granted, queued again, finished.

Every change of an action's state, and every allocation and release, goes through here.
"""

from __future__ import annotations

import msgspec

from domain.action import ActionState, Kind, LeaseSpec, Outcome, Timing
from domain.decisions import Abort, Decision, Finish, Grant, RemoveEnvironment, Requeue
from domain.events import NO_RESULT, ActionFinished
from domain.ids import ResourceId, node_resource
from scheduler.core.appetite import observe, why_light
from scheduler.core.durations import cost, learn
from scheduler.core.hosting import hand_out
from scheduler.core.merging import Kept, key_of
from scheduler.core.needs import Needs, depends_on_place
from scheduler.core.pools import needs_in
from scheduler.core.queues import Need, QueueKey, WaitQueue
from scheduler.core.state import LiveAction, LiveTrajectory, State, Tombstone
from scheduler.core.timers import TimerKind

#: An action that never started, or is replay-safe, is granted this many times at most.
MAX_ATTEMPTS = 3
#: How long the name of a finished trajectory and a cancel without an action are remembered.
TOMBSTONE_SECONDS = 600.0


def in_line(live: LiveAction) -> bool:
    """Say whether ``live`` takes turns with other actions of its trajectory."""
    return live.action.kind is Kind.EXEC and live.action.trajectory is not None


def enqueue(state: State, live: LiveAction) -> None:
    """Put a queued action into its wait queue, unless another one of its trajectory goes first."""
    trajectory = state.trajectory_of(live) if in_line(live) else None
    if trajectory is not None and (trajectory.busy or trajectory.line[0] != live.id):
        return
    if trajectory is not None and trajectory.node is not None and depends_on_place(live.action):
        live.needs = needs_now(state, live)
    key = line_of(live, trajectory)
    stand(state, live, key)
    state.dirty = True
    if state.deferrals:
        _decide_again(state, key)


def stand(state: State, live: LiveAction, key: QueueKey) -> WaitQueue:
    """Put ``live`` at its place in the line ``key``."""
    queue = state.queues.get(key)
    if queue is None:
        queue = state.queues[key] = _line(state, key)
    queue.push(live)
    return queue


def _line(state: State, key: QueueKey) -> WaitQueue:
    """Return a line in which nobody stands, the one that was there before if it is remembered."""
    drained = state.drained
    return drained.pop(key) if key in drained else WaitQueue(key)


def _decide_again(state: State, key: QueueKey) -> None:
    """Somebody joined or left the line ``key``: look anew at who was evicted from its groups."""
    wanted = key.needs.key
    for resource in list(state.deferrals):
        kind, _, node = resource.partition(":")
        if wanted == resource or (wanted == kind and key.node in (None, node)):
            del state.deferrals[resource]


def needs_now(state: State, live: LiveAction) -> Needs:
    """Return what ``live`` is admitted with where it would run now."""
    trajectory = state.trajectory_of(live) if in_line(live) else None
    return needs_in(state, live.action, live.pool, trajectory.node if trajectory else None)


def line_of(live: LiveAction, trajectory: LiveTrajectory | None) -> QueueKey:
    """Say who ``live`` stands in line with; ``trajectory`` is the one in which it takes turns."""
    if trajectory is None:
        return QueueKey(live.pool, None, live.needs)
    memory = trajectory.memory_bytes if trajectory.node is None else 0
    return QueueKey(live.pool, trajectory.node, live.needs, memory)


def leave_queue(state: State, live: LiveAction) -> None:
    """Take a queued action out of its wait queue, if it stands in one.

    Whoever waited behind it may go now, unless it leaves because it was granted.
    """
    key = live.queue
    if key is not None:
        state.queues[key].leave(live)
        state.dirty = True
        if state.deferrals:
            _decide_again(state, key)


def promote(state: State, trajectory: LiveTrajectory) -> None:
    """Let the next exec action of ``trajectory`` queue up."""
    line = trajectory.line
    while line and line[0] not in trajectory.live:
        line.pop(0)
    if line:
        following = state.actions[line[0]]
        if following.queue is None:
            enqueue(state, following)


def grant(
    state: State,
    live: LiveAction,
    node: str | None,
    decisions: list[Decision],
    key_amount: int | None = None,
) -> None:
    """Give ``live`` its units on ``node``; the caller has checked that they fit.

    It gets what it was admitted with, but ``key_amount`` of its key resource where that is given.
    """
    if live.queue is not None:
        queue = state.queues[live.queue]
        queue.leave(live)
        resources = queue.units_on(node)
    else:
        resources = _units_on(live, node)
    live.attempt += 1
    live.move(ActionState.GRANTED)
    live.granted_at = state.now
    if node is not None:
        state.place(live, node)
    if key_amount is not None:
        key = live.key_resource
        resources = [(name, key_amount if name == key else n) for name, n in resources]
    trajectory = state.trajectory_of(live) if in_line(live) else None
    _allocate(state, live, resources, trajectory.home if trajectory is not None else ())
    if state.paced:
        for resource, _ in resources:
            if resource in state.paced:
                state.paced[resource].spend(live.holder)
    if trajectory is not None and node is not None:
        trajectory.busy = live.id
        trajectory.line.pop(0)
        bind(state, trajectory, node)
        if not trajectory.home:
            settle(state, live, trajectory)
    if live.action.kind is Kind.LEASE:
        _start_lease(state, live)
    decisions.append(
        Grant(
            live.id,
            node,
            live.allocations,
            live.lease_expires_at,
            live.attempt,
            live.action.project,
        )
    )


def _allocate(state: State, live: LiveAction, needs: list[Need], home: tuple[int, ...]) -> None:
    """Hand ``needs`` out to ``live``, whose trajectory's memory lies beside the cores ``home``."""
    unsaid = live.needs.on_node and "cpu" not in live.action.cost
    allocations = []
    for resource, amount in needs:
        if home and resource in state.local:
            allocation = state.local[resource].allocate(live.holder, amount, home)
        else:
            allocation = hand_out(state, live.action, live.holder, resource, amount)
        if unsaid and resource.startswith("cpu:"):
            allocation = msgspec.structs.replace(allocation, why=why_light(state, live.action))
        allocations.append(allocation)
    live.allocations = tuple(allocations)


def settle(state: State, live: LiveAction, trajectory: LiveTrajectory) -> None:
    """Let ``trajectory`` be at home beside the cores of ``live``, where cores lie in several places.

    The first that it has alone say where its memory comes from; light actions do not settle it.
    """
    for allocation in live.allocations:
        ledger = state.local.get(allocation.resource)
        if ledger is not None and ledger.groups > 1 and not allocation.shared:
            trajectory.home = allocation.units


def _units_on(live: LiveAction, node: str | None) -> list[Need]:
    """Return what ``live`` is granted on ``node``, if on any, and cluster-wide."""
    units = [(ResourceId(name), amount) for name, amount in live.needs.in_cluster]
    if node is not None:
        units += [(node_resource(kind, node), n) for kind, n in live.needs.on_node]
    return units


def bind(state: State, trajectory: LiveTrajectory, node: str) -> None:
    """Tie ``trajectory`` to ``node`` and reserve its memory there, once."""
    if trajectory.node is not None:
        return
    trajectory.node = node
    if trajectory.memory_bytes:
        ledger = state.ledgers[node_resource("memory", node)]
        ledger.allocate(trajectory.holder, trajectory.memory_bytes)


def unbind(state: State, trajectory: LiveTrajectory) -> None:
    """Give back the memory of an environment that is gone."""
    if trajectory.node is not None and trajectory.memory_bytes:
        state.ledgers[node_resource("memory", trajectory.node)].release(trajectory.holder)
        state.deferrals.clear()
        state.dirty = True
    trajectory.node, trajectory.home = None, ()


def _start_lease(state: State, live: LiveAction) -> None:
    live.move(ActionState.RUNNING)
    live.started_at = state.now
    extend_lease(state, live, None)


def extend_lease(state: State, live: LiveAction, ttl_seconds: float | None) -> float:
    """Let a lease end ``ttl_seconds`` from now (default: as declared); return when that is."""
    ttl = ttl_seconds or (live.action.lease or LeaseSpec()).ttl_seconds
    live.lease_expires_at = state.now + ttl
    state.timers.set(live.lease_expires_at, TimerKind.LEASE, live.id)
    return live.lease_expires_at


def release(state: State, live: LiveAction) -> None:
    """Take back everything ``live`` holds."""
    if live.state is ActionState.QUEUED:
        return
    for allocation in live.allocations:
        state.ledgers[allocation.resource].release(live.holder)
        state.deferrals.pop(allocation.resource, None)
        if state.resizes:
            state.changed.add(allocation.resource)
        state.dirty = True
    forget_place(state, live)


def orphan(state: State, live: LiveAction) -> None:
    """Leave what ``live`` holds with its silent node, which may still be running it."""
    if live.node is not None:
        state.nodes[live.node].orphans[live.holder] = live.allocations
        forget_place(state, live)


def release_orphan(state: State, node: str, holder: str) -> bool:
    """Take back what an orphan holds; False when there is none of that name."""
    held = state.nodes[node].orphans.pop(holder, None)
    if held is None:
        return False
    for allocation in held:
        state.ledgers[allocation.resource].release(holder)
        state.deferrals.pop(allocation.resource, None)
        if state.resizes:
            state.changed.add(allocation.resource)
    state.dirty = True
    return True


def forget_place(state: State, live: LiveAction) -> None:
    """Drop the links between ``live`` and its node."""
    state.displace(live)
    live.allocations = ()


def requeue(
    state: State, live: LiveAction, reason: str, decisions: list[Decision], *, gone: bool = True
) -> None:
    """Send a granted or running action back to its old place in line.

    ``gone`` False: its node is silent and may still be running it, so the units stay there.
    """
    (release if gone else orphan)(state, live)
    live.move(ActionState.QUEUED)
    live.node = live.granted_at = live.started_at = live.lease_expires_at = None
    live.resized_at, live.accounted_at, live.resizes = None, None, 0
    live.worked_seconds = live.key_milli_seconds = 0.0
    live.widths = []
    live.needs = needs_now(state, live)
    trajectory = state.trajectory_of(live) if in_line(live) else None
    if trajectory is not None:
        trajectory.busy = None
        trajectory.line.insert(0, live.id)
    decisions.append(Requeue(live.id, reason))
    enqueue(state, live)


def abort(live: LiveAction, outcome: Outcome, reason: str, decisions: list[Decision]) -> None:
    """Tell the node once to end ``live``; its report finishes the action."""
    if live.aborting is None and live.node is not None:
        live.aborting = (outcome, reason)
        decisions.append(Abort(live.id, live.node, reason, outcome, live.attempt))


def finish(
    state: State,
    live: LiveAction,
    outcome: Outcome,
    decisions: list[Decision],
    *,
    report: ActionFinished | None = None,
    detail: str | None = None,
    gone: bool = True,
    answer: Kept | None = None,
) -> None:
    """End ``live`` for good and free its units (``gone`` as in `requeue`).

    ``answer``: what an identical call was answered.
    """
    leave_queue(state, live)
    held, held_seconds = live.allocations, cost(state, live) if live.resizes else 0.0
    timing = _timing(state, live, report)
    if outcome is Outcome.COMPLETED and answer is None:
        learn(state, live, timing.execution_seconds)
        if report is not None and report.used is not None:
            observe(state, live.action, timing.execution_seconds, report.used)
    (release if gone else orphan)(state, live)
    live.move(ActionState.FINISHED)
    del state.actions[live.id]
    state.choices.pop(live.id, None)
    completed = outcome is Outcome.COMPLETED
    decisions.append(
        Finish(
            action_id=live.id,
            project=live.action.project,
            task=live.action.task,
            trajectory=live.action.trajectory,
            outcome=outcome,
            timing=timing,
            reward=_reward(report, answer) if completed else None,
            detail=detail if detail is not None else (report.detail if report else None),
            node=live.node,
            allocations=held,
            kind=live.action.kind,
            attempts=live.attempt,
            resizes=live.resizes,
            key_milli_seconds=held_seconds,
            widths=tuple(live.widths),
            result=NO_RESULT if answer is None else msgspec.Raw(answer.result),
            used=report.used if report is not None else None,
        )
    )
    _leave_trajectory(state, live, decisions)
    if live.action.call is not None:
        _hand_on(state, live, report if completed else None, decisions)


def _reward(report: ActionFinished | None, answer: Kept | None) -> float | None:
    said = report if report is not None else answer
    return None if said is None else said.reward


def _hand_on(
    state: State, live: LiveAction, report: ActionFinished | None, decisions: list[Decision]
) -> None:
    """Give those that followed ``live`` its answer; without one, the first of them leads."""
    followers = [state.actions[name] for name in state.merging.leave(live.id)]
    if report is not None:
        state.merging.keep(state.config, live.action, report, state.now)
    for follower in followers:
        if report is not None and report.result:
            answer = Kept(bytes(report.result), report.reward, state.now)
            said = f"the answer to {live.id}, an identical call"
            finish(state, follower, Outcome.COMPLETED, decisions, detail=said, answer=answer)
        else:
            enter(state, follower)


def enter(state: State, live: LiveAction) -> None:
    """Let an accepted action wait: in a line, or for the answer to an identical call."""
    key = key_of(state.config, live.action) if live.action.call is not None else None
    if key is None or state.merging.join(key, live.id) is None:
        enqueue(state, live)


def _timing(state: State, live: LiveAction, report: ActionFinished | None) -> Timing:
    act = max(0.0, state.now - live.submitted_at)
    waited_until = live.granted_at if live.granted_at is not None else state.now
    queue = min(act, max(0.0, waited_until - live.submitted_at))
    if report is not None:
        execution = report.execution_seconds
    elif live.started_at is not None:
        execution = state.now - live.started_at
    else:
        execution = 0.0
    execution = min(max(0.0, execution), act - queue)
    return Timing(queue, act - queue - execution, execution, act)


def _leave_trajectory(state: State, live: LiveAction, decisions: list[Decision]) -> None:
    trajectory = state.trajectory_of(live)
    if trajectory is None:
        return
    trajectory.live.discard(live.id)
    if trajectory.busy == live.id:
        trajectory.busy = None
    if trajectory.closing is not None:
        close_if_idle(state, trajectory, decisions)
    else:
        promote(state, trajectory)


def close_if_idle(state: State, trajectory: LiveTrajectory, decisions: list[Decision]) -> None:
    """Remove the environment of a closing trajectory once nothing of it is left."""
    if trajectory.live or trajectory.removing:
        return
    if trajectory.node is None:
        drop_trajectory(state, trajectory)
        return
    trajectory.removing = True
    decisions.append(
        RemoveEnvironment(trajectory.key, trajectory.node, trajectory.closing or "finished")
    )


def drop_trajectory(state: State, trajectory: LiveTrajectory) -> None:
    """Forget a trajectory whose environment is gone; its memory is free."""
    unbind(state, trajectory)
    state.trajectories.pop(trajectory.key, None)
    bury(state, trajectory.key, trajectory.closing or "finished", lost=trajectory.lost)


def bury(state: State, name: str, why: str, *, lost: bool = False) -> None:
    """Remember for a while that ``name`` is over, and whether that was our fault."""
    until = state.now + TOMBSTONE_SECONDS
    state.tombstones[name] = Tombstone(why, until, lost)
    state.timers.set(until, TimerKind.TOMBSTONE, name)
