"""Requests for forks of a trajectory, and the reports of the nodes that make them (`state.forks`)."""

from __future__ import annotations

from domain.decisions import Decision, Refuse
from domain.events import EnvironmentsForked, TrajectoriesForked
from domain.forks import REFUSE
from domain.ids import trajectory_key
from scheduler.core.handlers.trajectories import lose_environment
from scheduler.core.state.completion import close_if_idle
from scheduler.core.state.forks import Refusal, continue_line, why_not
from scheduler.core.state.lifecycle import unbind
from scheduler.core.state.live import ForkRequest, LiveTrajectory
from scheduler.core.state.model import State
from scheduler.core.state.moves import note_idle


def asked(state: State, event: TrajectoriesForked, decisions: list[Decision]) -> None:
    """Fork a trajectory, now or after the actions before; or refuse with the reason."""
    source = state.trajectories.get(trajectory_key(event.project, event.source))
    if source is None:
        missing = f"there is no open trajectory {event.source!r}"
        decisions.append(Refuse(event.request_id, event.reply_to, "not_found", missing))
        return
    before = tuple(
        each
        for each in (*([source.busy] if source.busy else []), *source.line)
        if each in source.live
    )
    if (refusal := _refused_at_once(state, source, event, bool(before))) is not None:
        decisions.append(Refuse(event.request_id, event.reply_to, *refusal))
        return
    source.forks.append(
        ForkRequest(
            event.request_id, event.reply_to, event.children, event.on_busy, before, event.metadata,
            event.snapshot, event.door,
        )
    )  # fmt: skip
    continue_line(state, source, decisions)


def _refused_at_once(
    state: State, source: LiveTrajectory, event: TrajectoriesForked, busy: bool
) -> Refusal | None:
    if source.closing is not None:
        return "conflict", f"the trajectory is over: {source.closing}"
    if busy and event.on_busy == REFUSE:
        waits = "wait for them with on_busy: wait"
        return (
            "conflict",
            f"{len(source.line) + bool(source.busy)} actions run or wait in it: {waits}",
        )
    if busy or source.forking or source.move is not None:
        return None  # judged when it is due
    return why_not(state, source, event.children)


def made(state: State, event: EnvironmentsForked, decisions: list[Decision]) -> None:
    """Let source and children continue; after a failure the children are gone. Repeats do nothing."""
    source = state.trajectories.get(event.source)
    if source is not None and source.forking == event.request_id and source.node == event.node:
        source.forking = ""
        source.forks = [each for each in source.forks if each.request_id != event.request_id]
        _continue(state, source, decisions)
    for key in event.children:
        child = state.trajectories.get(key)
        if child is None or child.forking != event.request_id or child.node != event.node:
            continue
        child.forking = ""
        if not event.failed:
            _continue(state, child, decisions)
        elif child.live:
            lose_environment(state, child, f"the fork failed: {event.failed}", decisions)
        else:
            unbind(state, child)
            state.remove_trajectory(child)


def _continue(state: State, trajectory: LiveTrajectory, decisions: list[Decision]) -> None:
    if trajectory.closing is not None:
        close_if_idle(state, trajectory, decisions)
    else:
        continue_line(state, trajectory, decisions)
        note_idle(state, trajectory)
