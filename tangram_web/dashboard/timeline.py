"""Timelines: the phases of an action, and the actions of a trajectory with a lane each. Pure.

Places and widths are percentages of the span that is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from domain.action import ActionState
from tangram_web.records.models import ActionRecord, TrajectoryRecord

#: Height of a lane with the gap below it, in units of the drawing.
LANE = 18


@dataclass(frozen=True)
class Phase:
    """A phase of an action: ``queue``, ``overhead`` or ``execution``."""

    name: str
    start: float
    width: float
    seconds: float


@dataclass(frozen=True)
class ActionLane:
    """An action and its phases."""

    action: ActionRecord
    top: int
    phases: list[Phase]


@dataclass(frozen=True)
class Chart:
    """All lanes, and the length of the span."""

    lanes: list[ActionLane]
    seconds: float

    @property
    def height(self) -> int:
        return max(LANE, LANE * len(self.lanes))


def lanes_of(trajectory: TrajectoryRecord, actions: Sequence[ActionRecord], now: datetime) -> Chart:
    """Lay out ``actions``, oldest first, over the life of ``trajectory`` so far."""
    start = start_of(trajectory, actions)
    ends = [_end(action, now) for action in actions]
    end = max([trajectory.finished_at or start, *ends])
    span = max(1e-6, (end - start).total_seconds())
    lanes = [
        ActionLane(action, index * LANE, _placed(action, start, span, now))
        for index, action in enumerate(actions)
    ]
    return Chart(lanes, span)


def start_of(trajectory: TrajectoryRecord, actions: Sequence[ActionRecord]) -> datetime:
    """Return where drawings begin: at the opening, or at the first action if earlier ones are left out."""
    submitted = [action.submitted_at for action in actions]
    if submitted and len(actions) < trajectory.actions:
        return min(submitted)
    return min([trajectory.opened_at, *submitted])


def _end(action: ActionRecord, now: datetime) -> datetime:
    return action.finished_at or now


def _placed(action: ActionRecord, start: datetime, span: float, now: datetime) -> list[Phase]:
    at = (action.submitted_at - start).total_seconds()
    phases = []
    for name, seconds in durations_of(action, now):
        seconds = max(0.0, seconds)
        phases.append(Phase(name, 100 * at / span, max(0.05, 100 * seconds / span), seconds))
        at += seconds
    return phases


def phases_of(action: ActionRecord, now: datetime) -> list[Phase]:
    """Return an action's phases as parts of its own life, until ``now`` if it has not finished."""
    parts = [(name, max(0.0, seconds)) for name, seconds in durations_of(action, now)]
    whole = sum(seconds for _, seconds in parts) or 1.0
    phases: list[Phase] = []
    start = 0.0
    for name, seconds in parts:
        width = 100 * seconds / whole
        phases.append(Phase(name, round(start, 3), round(width, 3), seconds))
        start += width
    return phases


def durations_of(action: ActionRecord, now: datetime) -> list[tuple[str, float]]:
    """Return the name and the seconds of each phase, until ``now`` if it has not finished."""
    if action.act_seconds is not None:
        return [
            ("queue", action.queue_seconds or 0.0),
            ("overhead", action.overhead_seconds or 0.0),
            ("execution", action.execution_seconds or 0.0),
        ]
    if action.granted_at is None:
        return [("queue", (now - action.submitted_at).total_seconds())]
    running = "execution" if action.state == ActionState.RUNNING else "overhead"
    return [
        ("queue", (action.granted_at - action.submitted_at).total_seconds()),
        (running, (now - action.granted_at).total_seconds()),
    ]
