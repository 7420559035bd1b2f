"""Rollouts: submission, assignment to workers, cancel, parking and end; and the workers themselves.

Rules
1. Each rollout has one `FinishRollout`, whatever arrives twice or late.
2. The worker with most free slots, of those that have its handler, gets the next rollout, by priority, then arrival.
   All is decided in the pass of the event that makes it possible (I8).
3. Each assignment has the next attempt. Reports of another attempt or worker change nothing.
4. With its end, the trajectories of a rollout are closed: actions end, environments are removed, also
   when its worker is dead.
5. Only a completed rollout has a reward, and it is a finite number (I2).
6. The generations of a rollout that leaves its worker end with that: the worker has their connections, and what continues the rollout
   samples again.
"""

from __future__ import annotations

from math import isfinite

from msgspec.structs import replace

from domain.action import LEASE, Outcome
from domain.decisions import (
    AssignRollout,
    Decision,
    FinishRollout,
    ParkRollout,
    ResumeRollout,
    WithdrawRollout,
)
from domain.ids import TrajectoryKey, trajectory_key
from domain.rollout_events import (
    RolloutCancelRequested,
    RolloutFinished,
    RolloutParkRequested,
    RolloutResumeRequested,
    RolloutsProgressed,
    RolloutsSubmitted,
    RolloutWorkerJoined,
    RolloutWorkerLost,
)
from domain.rollouts import Rollout, RolloutOutcome, RolloutResult, RolloutState
from scheduler.core.handlers.backends import forget_unused, open_pool
from scheduler.core.handlers.trajectories import close
from scheduler.core.state.completion import add_tombstone, finish
from scheduler.core.state.model import State
from scheduler.core.state.rollouts import (
    MAX_LOSSES,
    REMEMBERED_SECONDS,
    LiveRollout,
    LiveRolloutWorker,
    cancel_mark,
    over_mark,
)


def submitted(state: State, event: RolloutsSubmitted, decisions: list[Decision]) -> None:
    """Let new rollouts wait; one that was cancelled before ends at once."""
    for rollout in event.rollouts:
        over = over_mark(rollout.project, rollout.id)
        if rollout.id in state.rollouts.live or over in state.tombstones:
            continue
        state.arrivals += 1
        order = _priority(state, rollout), state.arrivals
        live = LiveRollout(rollout, order, event.at - event.lag_seconds)
        cancelled = state.tombstones.get(cancel_mark(rollout.project, rollout.id))
        if event.set_aside:
            end(state, live, _ended(RolloutOutcome.INFRA_FAILED, event.set_aside), decisions)
        elif cancelled is not None:
            end(state, live, _ended(RolloutOutcome.CANCELLED, cancelled.why), decisions)
        elif rollout.pool and (
            refused := open_pool(state, rollout.pool, rollout.project, decisions)
        ):
            end(state, live, _ended(RolloutOutcome.INFRA_FAILED, refused), decisions)
        else:
            state.residency.on_rollout(rollout, decisions)
            state.rollouts.wait(live)
            if (own := trajectory_key(rollout.project, rollout.id)) in state.trajectories:
                live.trajectories.append(own)


def _priority(state: State, rollout: Rollout) -> int:
    """Return the first part of the order of ``rollout``: its task's priority, else its own."""
    set_for_task = state.steering.of(rollout.project, rollout.task).priority
    return -(rollout.priority if set_for_task is None else set_for_task)


def _ended(outcome: RolloutOutcome, reason: str) -> RolloutResult:
    return RolloutResult(outcome, reason=reason)


def assign_waiting(state: State, decisions: list[Decision]) -> None:
    """Assign waiting rollouts to workers as long as there are free slots."""
    rollouts = state.rollouts
    rollouts.changed = False
    while (found := rollouts.next_assignment()) is not None:
        live, worker = found
        rollouts.assign(live, worker, state.now)
        decisions.append(AssignRollout(live.rollout, worker.name, worker.incarnation, live.attempt))


def cancel_requested(
    state: State, event: RolloutCancelRequested, decisions: list[Decision]
) -> None:
    """End a rollout as cancelled; remember the cancel of an unknown one."""
    live = state.rollouts.find(event.rollout_id, event.project)
    if live is not None:
        cancel(state, live, event.reason, decisions)
        return
    mark = cancel_mark(event.project, event.rollout_id)
    over = over_mark(event.project, event.rollout_id)
    if mark not in state.tombstones and over not in state.tombstones:
        add_tombstone(state, mark, event.reason, seconds=REMEMBERED_SECONDS)


def cancel(state: State, live: LiveRollout, reason: str, decisions: list[Decision]) -> None:
    """End ``live`` as cancelled, in any state."""
    end(state, live, _ended(RolloutOutcome.CANCELLED, reason), decisions)


def of_task(state: State, project: str, task: str) -> list[LiveRollout]:
    """Return the live rollouts of a task, in order."""
    every = state.rollouts.live.values()
    found = [each for each in every if (each.rollout.project, each.rollout.task) == (project, task)]
    return sorted(found, key=lambda live: live.order)


def reprioritise(state: State, project: str, task: str) -> None:
    """Order the rollouts of a task by its present priority."""
    for live in of_task(state, project, task):
        state.rollouts.reorder(live, (_priority(state, live.rollout), live.order[1]))


def park_requested(state: State, event: RolloutParkRequested, decisions: list[Decision]) -> None:
    """Park a rollout: its leases end, its environments stay. Repeats do nothing."""
    live = state.rollouts.find(event.rollout_id, event.project)
    if live is None or live.state is RolloutState.PARKED:
        return
    _withdraw(state, live, event.reason, decisions, parked=True)
    live.state = RolloutState.PARKED
    decisions.append(ParkRollout(live.id, event.reason))
    _end_leases(state, live, f"the rollout is parked: {event.reason}", decisions)


def _end_leases(state: State, live: LiveRollout, detail: str, decisions: list[Decision]) -> None:
    for key in live.trajectories:
        trajectory = state.trajectories.get(TrajectoryKey(key))
        for action_id in sorted(trajectory.live) if trajectory is not None else ():
            action = state.actions.get(action_id)
            if action is not None and action.action.kind is LEASE:
                finish(state, action, Outcome.CANCELLED, decisions, detail=detail)


def _end_generations(
    state: State, live: LiveRollout, reason: str, decisions: list[Decision]
) -> None:
    if not live.rollout.fleet:
        return
    for key in live.trajectories:
        trajectory = state.trajectories.get(TrajectoryKey(key))
        for action_id in sorted(trajectory.live) if trajectory is not None else ():
            action = state.actions.get(action_id)
            if action is not None and action.action.generation is not None:
                detail = f"the rollout left its worker: {reason}"
                finish(state, action, Outcome.CANCELLED, decisions, detail=detail)


def resume_requested(
    state: State, event: RolloutResumeRequested, decisions: list[Decision]
) -> None:
    """Let a parked rollout wait for a worker. Repeats do nothing."""
    live = state.rollouts.find(event.rollout_id, event.project)
    if live is not None and live.state is RolloutState.PARKED:
        state.rollouts.wait(live)
        decisions.append(ResumeRollout(live.id))


def worker_joined(state: State, event: RolloutWorkerJoined, decisions: list[Decision]) -> None:
    """Add a worker, or change its slots; the rollouts of its former incarnation are assigned again."""
    rollouts = state.rollouts
    before = rollouts.workers.get(event.worker)
    if before is not None and event.incarnation < before.incarnation:
        return
    if before is not None and event.incarnation > before.incarnation:
        _lose(state, before, "its worker was restarted", decisions)
    if before is None or event.incarnation > before.incarnation:
        rollouts.workers[event.worker] = LiveRolloutWorker(
            event.worker,
            event.incarnation,
            max(0, event.slots),
            state.now,
            event.hostname,
            event.version,
            event.handlers,
        )
    else:
        before.slots, before.handlers = max(0, event.slots), event.handlers
    rollouts.changed = True


def worker_lost(state: State, event: RolloutWorkerLost, decisions: list[Decision]) -> None:
    """Remove a worker; its rollouts are assigned again. Reports about a former incarnation do nothing."""
    worker = state.rollouts.workers.get(event.worker)
    if worker is not None and worker.incarnation == event.incarnation:
        _lose(state, worker, event.reason, decisions)


def _lose(state: State, worker: LiveRolloutWorker, why: str, decisions: list[Decision]) -> None:
    """Remove ``worker``, and let its rollouts wait; one that has lost too many workers ends."""
    del state.rollouts.workers[worker.name]
    for live in state.rollouts.of_worker(worker.name):
        live.losses += 1
        if live.losses >= MAX_LOSSES:
            reason = f"{live.losses} workers were lost while they ran it; the last one: {why}"
            _withdraw(state, live, reason, decisions, by=worker)
            end(state, live, _ended(RolloutOutcome.INFRA_FAILED, reason), decisions)
            continue
        _withdraw(state, live, why, decisions, by=worker)
        state.rollouts.wait(live)
        decisions.append(ResumeRollout(live.id, why))


def _withdraw(
    state: State,
    live: LiveRollout,
    reason: str,
    decisions: list[Decision],
    *,
    parked: bool = False,
    by: LiveRolloutWorker | None = None,
) -> None:
    """Take a rollout off its worker, if it has one. ``by``: a worker that was removed just now."""
    worker = by or state.rollouts.workers.get(live.worker)
    _end_generations(state, live, reason, decisions)
    if live.worker and worker is not None:
        decisions.append(
            WithdrawRollout(live.id, worker.name, worker.incarnation, live.attempt, reason, parked)
        )
    state.rollouts.take_off(live)


def progressed(state: State, event: RolloutsProgressed, decisions: list[Decision]) -> None:
    """Keep the progress of rollouts for queries."""
    for report in event.reports:
        live = state.rollouts.live.get(report.rollout_id)
        if live is not None and live.worker == event.worker and live.attempt == report.attempt:
            live.progress = report.progress


def finished(state: State, event: RolloutFinished, decisions: list[Decision]) -> None:
    """End a rollout as its worker reports; the report of another attempt changes nothing."""
    live = state.rollouts.live.get(event.rollout_id)
    if live is not None and live.worker == event.worker and live.attempt == event.attempt:
        state.rollouts.take_off(live)  # the worker needs no message
        end(state, live, _with_sound_reward(event.result), decisions)


def _with_sound_reward(result: RolloutResult) -> RolloutResult:
    """Return ``result`` without a reward that it may not have."""
    if result.reward is None:
        return result
    if result.outcome is not RolloutOutcome.COMPLETED:
        return replace(result, reward=None)
    if not isfinite(result.reward):
        return replace(result, reward=None, reason="the reward is not a finite number")
    return result


def end(state: State, live: LiveRollout, result: RolloutResult, decisions: list[Decision]) -> None:
    """Finish a rollout, and close its trajectories."""
    _withdraw(state, live, result.reason or result.outcome.value, decisions)
    state.rollouts.drop(live)
    rollout = live.rollout
    state.residency.on_rollout_ended(rollout, result)
    reason = f"the rollout is over: {result.outcome.value}"
    over = over_mark(rollout.project, live.id)
    add_tombstone(state, over, reason, seconds=REMEMBERED_SECONDS)
    began = state.now if live.began_at is None else live.began_at
    decisions.append(
        FinishRollout(
            rollout_id=live.id,
            project=rollout.project,
            task=rollout.task,
            result=result,
            handler=rollout.handler,
            instance=rollout.instance,
            group=rollout.group,
            sample=rollout.sample,
            attempts=live.attempt,
            queue_seconds=max(0.0, began - live.submitted_at),
            total_seconds=max(0.0, state.now - live.submitted_at),
            worker=live.last_worker,
            door=rollout.door,
        )
    )
    for key in live.trajectories:
        trajectory = state.trajectories.get(TrajectoryKey(key))
        if trajectory is not None:
            close(state, trajectory, reason, decisions)
    if rollout.pool:
        forget_unused(state, rollout.pool)
