"""Completion: the end of actions and trajectories.

The units of a finished action are released, the next action of its trajectory is queued, followers of
the same call get the answer, and the environment of a closed trajectory is removed.
"""

from __future__ import annotations

import msgspec

from domain.action import COMPLETED, FINISHED, Outcome, Timing
from domain.decisions import Decision, Finish, RemoveEnvironment
from domain.events import NO_RESULT, ActionFinished
from scheduler.core.state.coalescing import CachedAnswer, coalescing_key
from scheduler.core.state.cpu_usage_history import observe
from scheduler.core.state.durations import cost, learn
from scheduler.core.state.forks import continue_line
from scheduler.core.state.lifecycle import enqueue, leave_queue, orphan, release, unbind
from scheduler.core.state.live import LiveAction, LiveTrajectory
from scheduler.core.state.model import State, Tombstone
from scheduler.core.state.moves import drop_copy, end_move, note_idle
from scheduler.core.state.timers import TimerKind

#: How long the name of a finished trajectory and a cancel without an action are remembered.
TOMBSTONE_SECONDS = 600.0


def enqueue_or_follow(state: State, live: LiveAction, trajectory: LiveTrajectory | None) -> None:
    """Queue an accepted action, or let it wait for the answer to an identical call."""
    key = coalescing_key(state.config, live.action) if live.action.call is not None else None
    if key is None or state.coalescing.join(key, live.id) is None:
        enqueue(state, live, trajectory)


def finish(
    state: State,
    live: LiveAction,
    outcome: Outcome,
    decisions: list[Decision],
    *,
    report: ActionFinished | None = None,
    detail: str | None = None,
    ended: bool = True,
    answer: CachedAnswer | None = None,
) -> None:
    """Finish ``live`` and release its units (``ended`` as in `requeue`).

    ``answer``: the answer to an identical call.
    """
    action = live.action
    if live.queue is not None:
        leave_queue(state, live)
    held, held_seconds = live.allocations, cost(state, live) if live.resizes else 0.0
    timing = _timing(state, live, report)
    if outcome is COMPLETED and answer is None:
        learn(state, live, timing.execution_seconds)
        if report is not None and report.used is not None:
            observe(state, action, timing.execution_seconds, report.used)
    (release if ended else orphan)(state, live)
    live.move(FINISHED)
    if action.generation is not None:
        state.generations.end(live, state.now, None if report is None else report.usage)
    del state.actions[action.id]
    state.learned.forget_action(action.id)
    if state.critical_paths.accounts:
        state.critical_paths.finished(state.trajectory_of(live), live, state.now)
    completed = outcome is COMPLETED
    decisions.append(
        Finish(
            action_id=action.id,
            project=action.project,
            task=action.task,
            trajectory=action.trajectory,
            outcome=outcome,
            timing=timing,
            reward=_reward(report, answer) if completed else None,
            detail=detail if detail is not None else (report.detail if report else None),
            node=live.node,
            allocations=held,
            kind=action.kind,
            attempts=live.attempt,
            resizes=live.resizes,
            key_milli_seconds=held_seconds,
            widths=live.widths,
            result=NO_RESULT if answer is None else msgspec.Raw(answer.result),
            used=report.used if report is not None else None,
            door=action.door,
        )
    )
    if action.trajectory is not None:
        _leave_trajectory(state, live, decisions)
    if action.call is not None:
        _finish_followers(state, live, report if completed else None, decisions)


def _reward(report: ActionFinished | None, answer: CachedAnswer | None) -> float | None:
    said = report if report is not None else answer
    return None if said is None else said.reward


def _finish_followers(
    state: State, live: LiveAction, report: ActionFinished | None, decisions: list[Decision]
) -> None:
    """Finish the followers of ``live`` with its answer; without one, the first of them leads."""
    followers = [state.actions[name] for name in state.coalescing.leave(live.id)]
    if report is not None:
        state.coalescing.keep(state.config, live.action, report, state.now)
    for follower in followers:
        if report is not None and report.result:
            answer = CachedAnswer(bytes(report.result), report.reward, state.now)
            said = f"the answer to {live.id}, an identical call"
            finish(state, follower, COMPLETED, decisions, detail=said, answer=answer)
        else:
            enqueue_or_follow(state, follower, state.trajectory_of(follower))


def _timing(state: State, live: LiveAction, report: ActionFinished | None) -> Timing:
    act = queue = max(0.0, state.now - live.submitted_at)
    if live.granted_at is not None:
        queue = min(act, max(0.0, live.granted_at - live.submitted_at))
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
    name = live.action.id
    trajectory.live.discard(name)
    if trajectory.move is not None and trajectory.move.claims:
        # It may have been what needs the target's units.
        state.queues.deferrals.clear()
        state.dirty = True
    if trajectory.busy == name:
        trajectory.busy = None
    if trajectory.closing is not None:
        close_if_idle(state, trajectory, decisions)
        return
    if trajectory.line or trajectory.forks:
        continue_line(state, trajectory, decisions)
    note_idle(state, trajectory)


def close_if_idle(state: State, trajectory: LiveTrajectory, decisions: list[Decision]) -> None:
    """Remove the environment of a closed trajectory once it has no live action and no fork is made."""
    end_move(state, trajectory, trajectory.closing or "finished", decisions)
    if trajectory.live or trajectory.removing or trajectory.forking:
        return
    trajectory.removing = True
    if trajectory.node is None:
        environment_gone(state, trajectory)
        return
    decisions.append(
        RemoveEnvironment(trajectory.key, trajectory.node, trajectory.closing or "finished")
    )


def environment_gone(state: State, trajectory: LiveTrajectory) -> None:
    """Forget a closed trajectory whose environment is gone, once its copies on other nodes are, too."""
    if trajectory.copies:
        unbind(state, trajectory)
    else:
        drop_trajectory(state, trajectory)


def copy_gone(state: State, trajectory: LiveTrajectory, node: str) -> None:
    """Forget a copy of a trajectory's environment, and the trajectory if that was the last that was left of it."""
    drop_copy(state, trajectory, node)
    if trajectory.removing and trajectory.node is None and not trajectory.copies:
        drop_trajectory(state, trajectory)


def lose_copies(state: State, node: str, why: str, decisions: list[Decision]) -> None:
    """End the moves to a node that has lost its state, and forget its copies."""
    moved = [state.trajectories[key] for key in state.moves.active | state.moves.copied]
    for trajectory in state.environments.in_order(moved):
        if trajectory.move is not None and trajectory.move.target == node:
            end_move(state, trajectory, why, decisions, gone=node)
        if node in trajectory.copies:
            copy_gone(state, trajectory, node)


def drop_trajectory(state: State, trajectory: LiveTrajectory) -> None:
    """Remove a trajectory whose environment is gone, and release its memory."""
    unbind(state, trajectory)
    state.remove_trajectory(trajectory)
    state.critical_paths.ended(trajectory)
    if state.generations.fleets:
        state.generations.finish_trajectory(trajectory.key, state.now)
    add_tombstone(state, trajectory.key, trajectory.closing or "finished", lost=trajectory.lost)


def add_tombstone(
    state: State, name: str, why: str, *, lost: bool = False, seconds: float = TOMBSTONE_SECONDS
) -> None:
    """Remember for ``seconds`` that ``name`` is over; ``lost``: not by the trainer's request."""
    until = state.now + seconds
    state.tombstones[name] = Tombstone(why, until, lost)
    state.timers.set(until, TimerKind.TOMBSTONE, name)
