"""Submission, cancellation, start and end of actions."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from domain.action import COMPLETED, EXEC, GRANTED, LEASE, QUEUED, RUNNING, Action, Outcome, Timing
from domain.apis import Feedback, Verdict
from domain.confinement import NETWORK_NONE, check_network
from domain.decisions import Decision, Finish
from domain.errors import InvalidRequest
from domain.events import (
    ActionCancelRequested,
    ActionFinished,
    ActionSetAside,
    ActionStarted,
    ActionSubmitted,
)
from domain.ids import ActionId, TrajectoryKey, trajectory_key
from domain.node_groups import capacities_of_groups
from domain.resources import units
from scheduler.core.cycle.pool_policies import needs_in
from scheduler.core.cycle.precedence import order_of
from scheduler.core.handlers import generations
from scheduler.core.handlers.api_feedback import apply_report, describe_attempt
from scheduler.core.handlers.trajectories import default_pool, open_trajectory, why_over
from scheduler.core.sharing.cohorts import charged
from scheduler.core.sharing.shares import ceiling
from scheduler.core.state.coalescing import CachedAnswer, coalescing_key
from scheduler.core.state.completion import add_tombstone, enqueue_or_follow, finish
from scheduler.core.state.demand import Needs, PoolCapacity, capacity_of, check_feasible
from scheduler.core.state.lifecycle import MAX_ATTEMPTS, abort, release_orphan, requeue
from scheduler.core.state.live import LiveAction, LiveTrajectory, intern_names
from scheduler.core.state.model import State
from scheduler.core.state.timers import TimerKind

#: Outcomes after which the work may not have been done.
_UNSURE = frozenset({Outcome.UNKNOWN, Outcome.INFRA_FAILED})


def submitted(state: State, event: ActionSubmitted, decisions: list[Decision]) -> None:
    """Queue a new action, or finish it at once if it cannot run."""
    action = event.action
    if action.id in state.actions:
        return
    if event.set_aside:
        outcome = Outcome.INFRA_FAILED
        decisions.append(_finish_at_once(action, outcome, event.set_aside, event.lag_seconds))
        return
    key = trajectory = None
    if action.trajectory is not None:
        key = trajectory_key(action.project, action.trajectory)
        trajectory = state.trajectories.get(key)
    pool = _pool_of(state, action, trajectory)
    action, asked_units = state.residency.on_submitted(action, pool, decisions)
    needs = needs_in(state, action, pool, None)
    refusal = _closed(state, action, key, trajectory)
    refusal = refusal or _forbidden_network(state, action, pool, trajectory)
    if action.generation is not None:
        refusal = refusal or generations.undeclared(state, action)
    else:
        refusal = refusal or _never_fits(state, action, pool, needs, trajectory)
    if refusal is not None:
        outcome, detail = refusal
        decisions.append(_finish_at_once(action, outcome, detail, event.lag_seconds))
        return
    if action.call is not None and state.config.apis:
        kept = _kept(state, action)
        if kept is not None:
            decisions.append(_answered(action, kept, event.lag_seconds))
            return
    state.arrivals += 1
    intern_names(action)
    live = LiveAction(
        action=action,
        pool=pool,
        needs=needs,
        order=state.steering.order(action, state.arrivals),
        submitted_at=event.at - event.lag_seconds,
        asked_units=asked_units,
    )
    state.actions[action.id] = live
    if key is not None:
        trajectory = _join_trajectory(state, live, key, trajectory)
    live.order = order_of(state, live, trajectory)
    enqueue_or_follow(state, live, trajectory)
    if action.queue_timeout_seconds is not None:
        due = live.submitted_at + action.queue_timeout_seconds
        state.timers.set(due, TimerKind.QUEUE_TIMEOUT, action.id)


def _pool_of(state: State, action: Action, trajectory: LiveTrajectory | None) -> str:
    """Return the pool that serves ``action``: its trajectory's, its own, its task's, the default."""
    if trajectory is not None:
        return trajectory.pool
    return action.pool or default_pool(state, action.project, action.task)


def _closed(
    state: State, action: Action, key: TrajectoryKey | None, trajectory: LiveTrajectory | None
) -> tuple[Outcome, str] | None:
    """Return why ``action`` arrives too late, if so: cancelled before, or its trajectory is closed."""
    if state.tombstones:
        cancelled = state.tombstones.get(_cancel_mark(action.project, action.id))
        if cancelled is not None:
            return Outcome.CANCELLED, cancelled.why
    if key is None:
        return None
    if trajectory is None and (why := why_over(state, action.project, action.trajectory or "")):
        return Outcome.CANCELLED, why
    buried = state.tombstones.get(key)
    over = trajectory.closing if trajectory else (buried.why if buried else None)
    if over is None:
        return None
    lost = (trajectory is not None and trajectory.lost) or (buried is not None and buried.lost)
    outcome = Outcome.INFRA_FAILED if lost else Outcome.CANCELLED
    return outcome, f"the trajectory is over: {over}"


def _forbidden_network(
    state: State, action: Action, pool: str, trajectory: LiveTrajectory | None
) -> tuple[Outcome, str] | None:
    """Return why the network of the environment of ``action`` is not allowed in ``pool``, if so."""
    if action.kind is not EXEC:
        return None
    environment = action.environment
    if trajectory is not None and trajectory.environment is not None:
        environment = trajectory.environment
    if environment is None or environment.network == NETWORK_NONE or pool not in state.config.pools:
        return None
    try:
        check_network(environment.network, pool, state.config.pools[pool].networks)
    except InvalidRequest as error:
        return Outcome.INFRA_FAILED, f"can never run: {error}"
    return None


def _never_fits(
    state: State, action: Action, pool: str, needs: Needs, trajectory: LiveTrajectory | None
) -> tuple[Outcome, str] | None:
    """Return why ``action`` can never run, if so."""
    memory = action.environment.memory_bytes if action.environment else 0
    node = None
    if trajectory is not None:
        node = trajectory.node if action.kind is EXEC else None
        memory = 0 if node else trajectory.memory_bytes or memory
    place = pool, node, needs, memory
    if place in state.pools.feasible:
        return None
    nodes = state.supply.nodes_of(pool) if node is None else [state.supply.nodes[node]]
    capacity = capacity_of([node.inventory for node in nodes])
    if node is None and nodes:
        groups = capacities_of_groups(state.config.node_groups.values(), pool)
        capacity = PoolCapacity((*capacity.nodes, *groups))
    try:
        check_feasible(action.cost, memory, state.config, pool, capacity)
    except InvalidRequest as error:
        where = f" on {node}, where its environment is" if node else ""
        return Outcome.INFRA_FAILED, f"can never run{where}: {error}"
    for name, amount in (*needs.in_cluster, *needs.on_node) if needs.project else ():
        most = ceiling(state, pool, name, needs.project)
        if most is not None and charged(name, amount) > most:
            has = f"project {needs.project!r} can have {units(most)} of {name} at most"
            return Outcome.INFRA_FAILED, f"can never run: {has}, {units(amount)} asked"
    state.pools.add_feasible(place)
    return None


def _finish_at_once(action: Action, outcome: Outcome, detail: str, waited: float) -> Finish:
    return Finish(
        action_id=action.id,
        project=action.project,
        task=action.task,
        trajectory=action.trajectory,
        outcome=outcome,
        timing=Timing(waited, 0.0, 0.0, waited),
        detail=detail,
        kind=action.kind,
        door=action.door,
    )


def _kept(state: State, action: Action) -> CachedAnswer | None:
    key = coalescing_key(state.config, action)
    if key is None or action.call is None:
        return None
    return state.coalescing.find(action.call.target, key, state.now)


def _answered(action: Action, kept: CachedAnswer, waited: float) -> Finish:
    """Finish a call with a cached answer; it is not granted and not sent."""
    finish = _finish_at_once(action, COMPLETED, "an answer that was kept", waited)
    return replace(finish, reward=kept.reward, result=msgspec.Raw(kept.result))


def _join_trajectory(
    state: State, live: LiveAction, key: TrajectoryKey, trajectory: LiveTrajectory | None
) -> LiveTrajectory:
    """Add ``live`` to its ``trajectory``, which is opened if there is none yet."""
    action = live.action
    if trajectory is None or (action.environment is not None and trajectory.environment is None):
        name = action.trajectory or ""
        trajectory = open_trajectory(
            state, action.project, action.task, name, live.pool, action.environment
        )
    live.pool = trajectory.pool
    trajectory.live.add(action.id)
    if action.kind is EXEC:
        trajectory.line.append(action.id)
        if trajectory.needed is not None:
            _note_needs(state, trajectory.needed, action)
    return trajectory


def _note_needs(state: State, needed: dict[str, int], action: Action) -> None:
    """Note the least that ``action`` can run with on a node, where it is more than that of earlier ones."""
    for name, counts in action.cost.items():
        if counts[0] > needed.get(name, 0) and name not in state.config.resources:
            needed[name] = counts[0]


def cancel_requested(state: State, event: ActionCancelRequested, decisions: list[Decision]) -> None:
    """End an action: at once if it is queued, else through its node. Repeats do nothing."""
    live = state.actions.get(event.action_id)
    if live is None:
        mark = _cancel_mark(event.project, event.action_id)
        if mark not in state.tombstones:
            add_tombstone(state, mark, event.reason)
    elif live.action.project == event.project:
        cancel(state, live, event.reason, decisions)


def _cancel_mark(project: str, action_id: ActionId) -> str:
    """Return the tombstone name of a cancel that arrives before its action; no trajectory has it."""
    return f"{project}#{action_id}"


def cancel(state: State, live: LiveAction, reason: str, decisions: list[Decision]) -> None:
    """End ``live`` as cancelled, in any state."""
    if live.state is QUEUED or live.action.kind is LEASE:
        finish(state, live, Outcome.CANCELLED, decisions, detail=reason)
    else:
        abort(live, Outcome.CANCELLED, reason, decisions)


def set_aside(state: State, event: ActionSetAside, decisions: list[Decision]) -> None:
    """End a waiting action that the core cannot grant; one that runs is ended by its node."""
    live = state.actions.get(event.action_id)
    if live is None:
        return
    if live.state is QUEUED or live.action.kind is LEASE:
        finish(state, live, Outcome.INFRA_FAILED, decisions, detail=event.why)
    else:
        abort(live, Outcome.INFRA_FAILED, event.why, decisions)


def started(state: State, event: ActionStarted, decisions: list[Decision]) -> None:
    """Record that a granted action runs."""
    live = state.actions.get(event.action_id)
    if (
        live is not None
        and live.state is GRANTED
        and live.attempt == event.attempt
        and _is_from(event.node, live)
    ):
        live.move(RUNNING)
        live.started_at = event.at


def finished(state: State, event: ActionFinished, decisions: list[Decision]) -> None:
    """Apply a node's report: release the units, then finish or requeue the action."""
    if event.usage is not None:
        live = _reported(state, event.action_id, event)
        if live is not None:
            state.residency.on_usage(live, event)
    if event.chunk is None:
        _end_attempt(state, event, decisions)
        return
    state.residency.on_finished(event)
    _end_attempt(state, event, decisions)
    state.residency.on_report(event.node, event.chunk)


def _end_attempt(state: State, event: ActionFinished, decisions: list[Decision]) -> None:
    node = state.supply.nodes.get(event.node)
    if node is not None and node.orphans:
        holder = f"{event.action_id}#{event.attempt}"
        if release_orphan(state, event.node, holder):
            return
    live = _reported(state, event.action_id, event)
    if live is None:
        return
    if event.feedback is not None and live.action.generation is None:
        _call_finished(state, live, event, event.feedback, decisions)
        return
    if (
        event.outcome in _UNSURE
        and (event.never_started or live.action.replay_safe)
        and not event.delivered
        and live.aborting is None
        and live.attempt < _most_attempts(live.action, event)
        and generations.undeclared(state, live.action) is None
    ):
        requeue(state, live, event.detail or str(event.outcome), decisions)
    else:
        finish(state, live, event.outcome, decisions, report=event)


def _most_attempts(action: Action, event: ActionFinished) -> int:
    """Return how often an action is granted at most; a worker that got a generation and failed is replaced once."""
    sent = action.generation is not None and not event.never_started
    return generations.MAX_SENT if sent else MAX_ATTEMPTS


def _call_finished(
    state: State,
    live: LiveAction,
    event: ActionFinished,
    feedback: Feedback,
    decisions: list[Decision],
) -> None:
    """Report the attempt to the ledger of the API; requeue the call, or finish it with its answer."""
    why_not = apply_report(state, live, event, feedback)
    if not why_not:
        requeue(state, live, describe_attempt(event, feedback), decisions)
    elif feedback.verdict is Verdict.OK:
        finish(state, live, event.outcome, decisions, report=event)
    else:
        detail = f"{describe_attempt(event, feedback)}; not made again: {why_not}"
        finish(state, live, event.outcome, decisions, report=event, detail=detail)


def _reported(state: State, action_id: ActionId, event: ActionFinished) -> LiveAction | None:
    live = state.actions.get(action_id)
    if live is None or live.state is QUEUED:
        return None
    return live if live.attempt == event.attempt and _is_from(event.node, live) else None


def _is_from(node: str, live: LiveAction) -> bool:
    """Return whether a report is of the node of ``live``; gateways report generations, which have none."""
    return live.node == node or (not node and live.action.generation is not None)
