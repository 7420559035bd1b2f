"""A trajectory as a flame: trajectory → step → action → its phases, nested, over time. Pure.

Frames that overlap in time lie in rows of their own: steps that a trainer runs at once, calls that
it makes in parallel. Actions that name no step lie below the trajectory itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from tangram_web.dashboard.lanes import parts_of
from tangram_web.records.models import ActionRecord, TrajectoryRecord

#: Height of a row, in units of the drawing.
ROW = 20
#: A frame narrower than this share of the span, in percent, shows no name.
NAMED = 3.0
#: A phase narrower than this, in percent, is less than a pixel and left out.
SEEN = 0.05


@dataclass(frozen=True)
class Frame:
    """One bar; places are percentages of the span, ``top`` is in units of the drawing."""

    kind: str
    name: str
    start: float
    width: float
    top: int
    seconds: float
    action_id: str = ""

    @property
    def named(self) -> bool:
        return self.width >= NAMED


@dataclass(frozen=True)
class Flame:
    """All frames, outer ones first."""

    frames: list[Frame]
    height: int
    seconds: float

    @property
    def outer(self) -> list[Frame]:
        """The trajectory and its steps."""
        return [frame for frame in self.frames if frame.kind in ("trajectory", "step")]


def flame_of(trajectory: TrajectoryRecord, actions: Sequence[ActionRecord], now: datetime) -> Flame:
    """Lay out ``actions``, oldest first, below their steps."""
    start = min([trajectory.opened_at, *(action.submitted_at for action in actions)])
    lives = [_Life(action, start, now) for action in actions]
    last = max([life.end for life in lives], default=0.0)
    if trajectory.finished_at is not None:
        last = max(last, (trajectory.finished_at - start).total_seconds())
    span = max(last, 1e-6)

    def frame(kind: str, name: str, at: float, end: float, row: int, action_id: str = "") -> Frame:
        width = 100 * (end - at) / span
        return Frame(kind, name, 100 * at / span, max(0.05, width), row * ROW, end - at, action_id)

    frames = [frame("trajectory", trajectory.name, 0.0, span, 0)]
    steps = _steps(lives)
    step_rows = rows_of((begin, end) for _, begin, end in steps)
    frames += [
        frame("step", f"step {name}", begin, end, 1 + row)
        for (name, begin, end), row in zip(steps, step_rows, strict=True)
    ]
    above = 1 + max(step_rows, default=-1) + 1
    action_rows = rows_of((life.begin, life.end) for life in lives)
    for life, row in zip(lives, action_rows, strict=True):
        at, top, record = life.begin, above + 2 * row, life.record
        frames.append(frame("action", record.family or record.kind, at, life.end, top, record.id))
        for name, seconds in parts_of(record, now):
            until = min(life.end, at + max(0.0, seconds))
            if 100 * (until - at) / span >= SEEN:
                frames.append(frame(name, name, at, until, top + 1, record.id))
            at = until
    return Flame(frames, (above + 2 * (max(action_rows, default=-1) + 1)) * ROW, span)


def rows_of(spans: Iterable[tuple[float, float]]) -> list[int]:
    """Return a row for each of ``spans``, given by beginning: the first in which it overlaps none."""
    free: list[float] = []
    rows = []
    for begin, end in spans:
        row = next((row for row, at in enumerate(free) if at <= begin), len(free))
        free[row : row + 1] = [end]
        rows.append(row)
    return rows


class _Life:
    """An action's place on the time of its trajectory, in seconds."""

    def __init__(self, record: ActionRecord, start: datetime, now: datetime) -> None:
        self.record = record
        self.begin = (record.submitted_at - start).total_seconds()
        self.end = max(self.begin, ((record.finished_at or now) - start).total_seconds())


def _steps(lives: list[_Life]) -> list[tuple[int, float, float]]:
    """Return each step that is named, with when it began and ended, in the order of their begin."""
    steps: dict[int, tuple[float, float]] = {}
    for life in lives:
        if life.record.step is not None:
            begin, end = steps.get(life.record.step, (life.begin, life.end))
            steps[life.record.step] = min(begin, life.begin), max(end, life.end)
    found = [(step, begin, end) for step, (begin, end) in steps.items()]
    return sorted(found, key=lambda one: one[1])
