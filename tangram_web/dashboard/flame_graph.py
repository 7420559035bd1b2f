"""Flame graph of a trajectory: trajectory → step → action → phases, nested, over time. Pure.

Frames that overlap in time are drawn in different rows: steps or calls that a trainer runs in
parallel. Actions without a step are drawn below the trajectory itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from tangram_web.dashboard.timeline import durations_of, start_of
from tangram_web.records.models import ActionRecord, TrajectoryRecord

#: Height of a row, in units of the drawing.
ROW = 20
#: A frame narrower than this share of the span, in percent, shows no name.
NAMED = 3.0
#: A phase narrower than this, in percent, is less than a pixel and left out.
SEEN = 0.05


@dataclass(frozen=True)
class FlameFrame:
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
class FlameGraph:
    """All frames, outer ones first."""

    frames: list[FlameFrame]
    height: int
    seconds: float

    @property
    def outer(self) -> list[FlameFrame]:
        """The trajectory and its steps."""
        return [frame for frame in self.frames if frame.kind in ("trajectory", "step")]


def flame_of(
    trajectory: TrajectoryRecord, actions: Sequence[ActionRecord], now: datetime
) -> FlameGraph:
    """Return the graph of ``actions``, oldest first, below their steps."""
    start = start_of(trajectory, actions)
    extents = [_Extent(action, start, now) for action in actions]
    last = max([extent.end for extent in extents], default=0.0)
    if trajectory.finished_at is not None:
        last = max(last, (trajectory.finished_at - start).total_seconds())
    span = max(last, 1e-6)

    def frame(
        kind: str, name: str, at: float, end: float, row: int, action_id: str = ""
    ) -> FlameFrame:
        width = 100 * (end - at) / span
        return FlameFrame(
            kind, name, 100 * at / span, max(0.05, width), row * ROW, end - at, action_id
        )

    frames = [frame("trajectory", trajectory.name, 0.0, span, 0)]
    steps = _steps(extents)
    step_rows = rows_of((begin, end) for _, begin, end in steps)
    frames += [
        frame("step", f"step {name}", begin, end, 1 + row)
        for (name, begin, end), row in zip(steps, step_rows, strict=True)
    ]
    above = 1 + max(step_rows, default=-1) + 1
    action_rows = rows_of((extent.begin, extent.end) for extent in extents)
    for extent, row in zip(extents, action_rows, strict=True):
        at, top, record = extent.begin, above + 2 * row, extent.record
        frames.append(frame("action", record.family or record.kind, at, extent.end, top, record.id))
        for name, seconds in durations_of(record, now):
            until = min(extent.end, at + max(0.0, seconds))
            if 100 * (until - at) / span >= SEEN:
                frames.append(frame(name, name, at, until, top + 1, record.id))
            at = until
    return FlameGraph(frames, (above + 2 * (max(action_rows, default=-1) + 1)) * ROW, span)


def rows_of(spans: Iterable[tuple[float, float]]) -> list[int]:
    """Return a row for each of ``spans``, sorted by begin: the first in which it overlaps none."""
    free: list[float] = []
    rows = []
    for begin, end in spans:
        row = next((row for row, at in enumerate(free) if at <= begin), len(free))
        free[row : row + 1] = [end]
        rows.append(row)
    return rows


class _Extent:
    """Begin and end of an action, in seconds since its trajectory began."""

    def __init__(self, record: ActionRecord, start: datetime, now: datetime) -> None:
        self.record = record
        self.begin = (record.submitted_at - start).total_seconds()
        self.end = max(self.begin, ((record.finished_at or now) - start).total_seconds())


def _steps(extents: list[_Extent]) -> list[tuple[int, float, float]]:
    """Return each step with its begin and end, in the order of their begin."""
    steps: dict[int, tuple[float, float]] = {}
    for extent in extents:
        if extent.record.step is not None:
            begin, end = steps.get(extent.record.step, (extent.begin, extent.end))
            steps[extent.record.step] = min(begin, extent.begin), max(end, extent.end)
    found = [(step, begin, end) for step, (begin, end) in steps.items()]
    return sorted(found, key=lambda one: one[1])
