"""Submission, cancellation, start and end of actions."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from domain.action import Action, ActionState, Kind, Outcome, Timing
from domain.apis import Feedback, Verdict
from domain.decisions import Decision, Finish
from domain.errors import InvalidRequest
from domain.events import ActionCancelRequested, ActionFinished, ActionStarted, ActionSubmitted
from domain.ids import ActionId
from domain.resources import units
from scheduler.core import hosting
from scheduler.core.cohorts import charged
from scheduler.core.ending import bury, enter, finish
from scheduler.core.handlers.calls import heed, words
from scheduler.core.handlers.trajectories import default_pool, open_trajectory
from scheduler.core.lifecycle import MAX_ATTEMPTS, abort, in_line, release_orphan, requeue
from scheduler.core.merging import Kept, key_of
from scheduler.core.needs import Needs, capacity_of, check_feasible
from scheduler.core.pools import needs_in
from scheduler.core.queues import QueueKey
from scheduler.core.shares import ceiling
from scheduler.core.state import LiveAction, LiveTrajectory, State, order_of
from scheduler.core.timers import TimerKind

#: After these, nobody can say that the work was done.
_UNSURE = frozenset({Outcome.UNKNOWN, Outcome.INFRA_FAILED})

#: Answers kept about what can ever fit.
_FEASIBLE_KEPT = 4096


def submitted(state: State, event: ActionSubmitted, decisions: list[Decision]) -> None:
    """Queue a new action, or finish it at once when it cannot run any more."""
    action = event.action
    if action.id in state.actions:
        return
    pool = pool_of(state, action)
    needs = needs_in(state, action, pool, None)
    refusal = _over(state, action) or _never_fits(state, action, pool, needs)
    if refusal is not None:
        outcome, detail = refusal
        decisions.append(_stillborn(action, outcome, detail, event.lag_seconds))
        return
    if action.call is not None and state.config.apis:
        kept = _kept(state, action)
        if kept is not None:
            decisions.append(_answered(action, kept, event.lag_seconds))
            return
    state.arrivals += 1
    live = LiveAction(
        action=action,
        pool=pool,
        needs=needs,
        order=order_of(state, action, state.arrivals),
        submitted_at=event.at - event.lag_seconds,
    )
    state.actions[action.id] = live
    _join_trajectory(state, live)
    enter(state, live)
    if action.queue_timeout_seconds is not None:
        due = live.submitted_at + action.queue_timeout_seconds
        state.timers.set(due, TimerKind.QUEUE_TIMEOUT, action.id)


def pool_of(state: State, action: Action) -> str:
    """Return the pool that serves ``action``: its trajectory's, its own, its task's, the default."""
    trajectory = _trajectory(state, action)
    if trajectory is not None:
        return trajectory.pool
    return action.pool or default_pool(state, action.project, action.task)


def _trajectory(state: State, action: Action) -> LiveTrajectory | None:
    key = action.trajectory_key
    return None if key is None else state.trajectories.get(key)


def _over(state: State, action: Action) -> tuple[Outcome, str] | None:
    """Say why ``action`` comes too late, if it does."""
    if state.tombstones:
        cancelled = state.tombstones.get(_cancel_mark(action.project, action.id))
        if cancelled is not None:
            return Outcome.CANCELLED, cancelled.why
    key = action.trajectory_key
    if key is None:
        return None
    trajectory, buried = state.trajectories.get(key), state.tombstones.get(key)
    over = trajectory.closing if trajectory else (buried.why if buried else None)
    if over is None:
        return None
    lost = (trajectory is not None and trajectory.lost) or (buried is not None and buried.lost)
    outcome = Outcome.INFRA_FAILED if lost else Outcome.CANCELLED
    return outcome, f"the trajectory is over: {over}"


def _never_fits(
    state: State, action: Action, pool: str, needs: Needs
) -> tuple[Outcome, str] | None:
    """Say why ``action`` can never run, if so."""
    memory = action.environment.memory_bytes if action.environment else 0
    node, trajectory = None, _trajectory(state, action)
    if trajectory is not None:
        node = trajectory.node if action.kind is Kind.EXEC else None
        memory = 0 if node else trajectory.memory_bytes or memory
    key = QueueKey(pool, node, needs, memory)
    if key in state.feasible:
        return None
    nodes = state.nodes_of(pool) if node is None else [state.nodes[node]]
    capacity = capacity_of([node.inventory for node in nodes])
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
    if len(state.feasible) >= _FEASIBLE_KEPT:
        state.feasible.clear()
    state.feasible.add(key)
    return None


def _stillborn(action: Action, outcome: Outcome, detail: str, waited: float) -> Finish:
    return Finish(
        action_id=action.id,
        project=action.project,
        task=action.task,
        trajectory=action.trajectory,
        outcome=outcome,
        timing=Timing(waited, 0.0, 0.0, waited),
        detail=detail,
        kind=action.kind,
    )


def _kept(state: State, action: Action) -> Kept | None:
    key = key_of(state.config, action)
    if key is None or action.call is None:
        return None
    return state.merging.find(action.call.target, key, state.now)


def _answered(action: Action, kept: Kept, waited: float) -> Finish:
    """End a call that was answered lately: nothing is granted, nothing sent."""
    finish = _stillborn(action, Outcome.COMPLETED, "an answer that was kept", waited)
    return replace(finish, reward=kept.reward, result=msgspec.Raw(kept.result))


def _join_trajectory(state: State, live: LiveAction) -> None:
    action = live.action
    if action.trajectory is None:
        return
    trajectory = open_trajectory(
        state, action.project, action.task, action.trajectory, live.pool, action.environment
    )
    live.pool = trajectory.pool
    trajectory.live.add(live.id)
    if in_line(live):
        trajectory.line.append(live.id)


def cancel_requested(state: State, event: ActionCancelRequested, decisions: list[Decision]) -> None:
    """End an action: at once when nobody runs it, else through its node. Repeats do nothing."""
    live = state.actions.get(event.action_id)
    if live is None:
        mark = _cancel_mark(event.project, event.action_id)
        if mark not in state.tombstones:
            bury(state, mark, event.reason)
    elif live.action.project == event.project:
        cancel(state, live, event.reason, decisions)


def _cancel_mark(project: str, action_id: ActionId) -> str:
    """Name the tombstone of a cancel that came before its action; no trajectory is called so."""
    return f"{project}#{action_id}"


def cancel(state: State, live: LiveAction, reason: str, decisions: list[Decision]) -> None:
    """End ``live`` as cancelled, whatever it is doing."""
    if live.state is ActionState.QUEUED or live.action.kind is Kind.LEASE:
        finish(state, live, Outcome.CANCELLED, decisions, detail=reason)
    else:
        abort(live, Outcome.CANCELLED, reason, decisions)


def started(state: State, event: ActionStarted, decisions: list[Decision]) -> None:
    """Note that a granted action runs."""
    live = state.actions.get(event.action_id)
    if (
        live is not None
        and live.state is ActionState.GRANTED
        and (live.node, live.attempt) == (event.node, event.attempt)
    ):
        live.move(ActionState.RUNNING)
        live.started_at = event.at


def finished(state: State, event: ActionFinished, decisions: list[Decision]) -> None:
    """Take a node's report: free the units, then finish the action or let it wait again."""
    if event.chunk is not None:
        hosting.learn(state, event)
    _end_attempt(state, event, decisions)
    if event.chunk is not None:
        hosting.heed(state, event)


def _end_attempt(state: State, event: ActionFinished, decisions: list[Decision]) -> None:
    node = state.nodes.get(event.node)
    if node is not None and node.orphans:
        holder = f"{event.action_id}#{event.attempt}"
        if release_orphan(state, event.node, holder):
            return
    live = _reported(state, event.action_id, event)
    if live is None:
        return
    if event.feedback is not None:
        _call_finished(state, live, event, event.feedback, decisions)
        return
    may_repeat = event.never_started or live.action.replay_safe
    if (
        event.outcome in _UNSURE
        and may_repeat
        and live.aborting is None
        and live.attempt < MAX_ATTEMPTS
    ):
        requeue(state, live, event.detail or str(event.outcome), decisions)
    else:
        finish(state, live, event.outcome, decisions, report=event)


def _call_finished(
    state: State,
    live: LiveAction,
    event: ActionFinished,
    feedback: Feedback,
    decisions: list[Decision],
) -> None:
    """Let the API's books follow; make the call again, or end it with what came back."""
    why_not = heed(state, live, event, feedback)
    if not why_not:
        requeue(state, live, words(event, feedback), decisions)
    elif feedback.verdict is Verdict.OK:
        finish(state, live, event.outcome, decisions, report=event)
    else:
        detail = f"{words(event, feedback)}; not made again: {why_not}"
        finish(state, live, event.outcome, decisions, report=event, detail=detail)


def _reported(state: State, action_id: ActionId, event: ActionFinished) -> LiveAction | None:
    live = state.actions.get(action_id)
    if live is None or live.state is ActionState.QUEUED:
        return None
    return live if (live.node, live.attempt) == (event.node, event.attempt) else None
