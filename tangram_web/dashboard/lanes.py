"""A trajectory over time: one lane for each action, drawn as shares of the whole span."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from domain.action import ActionState
from tangram_web.records.models import ActionRecord, TrajectoryRecord

#: Height of a lane and the gap below it, in units of the drawing.
LANE = 18


@dataclass(frozen=True)
class Bar:
    """A part of a lane; places are percentages of the span."""

    name: str
    start: float
    width: float
    seconds: float


@dataclass(frozen=True)
class Lane:
    """One action."""

    action: ActionRecord
    top: int
    bars: list[Bar]


@dataclass(frozen=True)
class Chart:
    """All lanes, and what the span consists of."""

    lanes: list[Lane]
    seconds: float
    #: Shares of the span, 0 to 1. What is left is the trainer's own: it thinks, or generates.
    waiting: float
    working: float

    @property
    def height(self) -> int:
        return max(LANE, LANE * len(self.lanes))

    @property
    def own(self) -> float:
        return max(0.0, 1.0 - self.waiting - self.working)


def lanes_of(trajectory: TrajectoryRecord, actions: Sequence[ActionRecord], now: datetime) -> Chart:
    """Lay out ``actions``, oldest first, over the life of ``trajectory`` so far."""
    start = min([trajectory.opened_at, *(action.submitted_at for action in actions)])
    ends = [_end(action, now) for action in actions]
    end = max([trajectory.finished_at or start, *ends])
    span = max(1e-6, (end - start).total_seconds())
    lanes = [
        Lane(action, index * LANE, _bars(action, start, span, now))
        for index, action in enumerate(actions)
    ]
    spent = {"queue": 0.0, "overhead": 0.0, "execution": 0.0}
    for lane in lanes:
        for bar in lane.bars:
            spent[bar.name] += bar.seconds
    waiting = min(1.0, (spent["queue"] + spent["overhead"]) / span)
    return Chart(lanes, span, waiting, min(1.0 - waiting, spent["execution"] / span))


def _end(action: ActionRecord, now: datetime) -> datetime:
    return action.finished_at or now


def _bars(action: ActionRecord, start: datetime, span: float, now: datetime) -> list[Bar]:
    at = (action.submitted_at - start).total_seconds()
    bars = []
    for name, seconds in parts_of(action, now):
        seconds = max(0.0, seconds)
        bars.append(Bar(name, 100 * at / span, max(0.05, 100 * seconds / span), seconds))
        at += seconds
    return bars


def parts_of(action: ActionRecord, now: datetime) -> list[tuple[str, float]]:
    """Return an action's phases and their seconds, so far where it is live."""
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
