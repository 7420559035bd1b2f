"""Recent activity, second by second: the last five minutes of charts, the last minute of statistics.

A second is closed when a later one begins: its rates are final, its levels are those at its end.
Points carry the journal second that they belong to, so a reader that missed some can detect it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from itertools import chain, islice
from typing import Any, Final

import numpy as np

from domain.decisions import Finish
from domain.resources import units
from tangram_web.lib.endings import ENDINGS, ending_of
from tangram_web.live.rollups.histogram import PhaseHistogram
from tangram_web.live.rollups.rollup import Rollup, merged_durations, rollup_of_second

#: Seconds that a chart shows.
CHART_SECONDS: Final = 300
#: Points in an ordinary frame. A reader that got a frame within this many seconds has them all.
FRAME_POINTS: Final = 12
#: Seconds behind the percentiles and the outcome counts of a frame.
WINDOW_SECONDS: Final = 60
#: Seconds behind the percentiles and means of one point of the charts.
POINT_SECONDS: Final = 10
#: Newest finished actions that are listed.
MAX_FINISHED: Final = 20

COLUMNS: Final = (
    "submitted",
    "finished",
    "queued",
    "granted",
    "running",
    "cores",
    "act_p50",
    "act_p95",
    "act_p99",
    "queue_mean",
    "overhead_mean",
    "execution_mean",
)


class RecentActivity:
    """Submissions, finishes and durations of the last minutes."""

    def __init__(self) -> None:
        #: The journal second that is counted now, and the first one; None before the first entry.
        self.open_second: int | None = None
        self.began: int | None = None
        self._submitted = 0
        self._ended: Counter[str] = Counter()
        self._durations = PhaseHistogram()
        #: Closed seconds of the window, oldest first; the open one completes it.
        self._seconds: deque[Rollup] = deque(maxlen=WINDOW_SECONDS - 1)
        #: Closed points in the order of `COLUMNS`.
        self._points: deque[tuple[float, ...]] = deque(maxlen=CHART_SECONDS)
        #: Of all closed seconds.
        self._outcomes: Counter[str] = Counter()
        self._finished: deque[tuple[float, Finish, int | None]] = deque(maxlen=MAX_FINISHED)

    def begin(self, second: int) -> None:
        """Open the first second."""
        self.began = self.open_second = second

    def skip_to(self, second: int) -> None:
        """Skip the seconds of a silence that is longer than every window."""
        silence = CHART_SECONDS + WINDOW_SECONDS
        if self.open_second is not None and second - self.open_second > silence:
            self.open_second = second - silence

    def submit(self) -> None:
        """Count a submission in the open second."""
        self._submitted += 1

    def finish(self, finish: Finish, at: float, exit_code: int | None = None) -> None:
        """Count a finished action in the open second; ``exit_code``: of its command, if it has one."""
        ending = ending_of(finish.outcome, exit_code)
        self._ended[ending] += 1
        self._durations.add(finish.timing)
        self._finished.append((at, finish, exit_code))

    @property
    def is_active(self) -> bool:
        """Whether an action was submitted or finished in the open second."""
        return bool(self._submitted or self._ended)

    def close_second(self, levels: Mapping[str, float], wall: int) -> Rollup:
        """Close the open second, which began at ``wall``, with the levels at its end."""
        second = self._open_rollup(levels, wall)
        durations = merged_durations(
            chain([second], islice(reversed(self._seconds), POINT_SECONDS - 1))
        )
        self._seconds.append(second)
        values = {
            **levels,
            "submitted": float(second.submitted),
            "finished": float(second.finished),
            **durations.chart_columns(),
        }
        self._points.append(tuple(values.get(name, float("nan")) for name in COLUMNS))
        self._submitted = 0
        if second.finished:
            self._outcomes.update(self._ended)
            self._ended, self._durations = Counter(), PhaseHistogram()
        self.open_second = (self.open_second or 0) + 1
        return second

    def points(self, length: int) -> dict[str, Any]:
        """Return the newest ``length`` points: first second, and float32 columns as bytes."""
        count = min(length, len(self._points))
        newest = list(islice(self._points, len(self._points) - count, None))
        values = np.array(newest, "<f4").reshape(count, len(COLUMNS))
        return {
            "first": (self.open_second or 0) - count,
            "count": count,
            "columns": {name: values[:, row].tobytes() for row, name in enumerate(COLUMNS)},
        }

    def rate(self, name: str, seconds: int) -> float:
        """Return the mean of a column over the newest ``seconds`` closed points."""
        row, taken = COLUMNS.index(name), min(seconds, len(self._points))
        newest = islice(reversed(self._points), taken)
        return sum(point[row] for point in newest) / taken if taken else 0.0

    def durations(self) -> dict[str, Any]:
        """Return percentiles and means by phase over the last minute, and the number of actions."""
        window = merged_durations(chain([self._open_rollup({}, 0)], reversed(self._seconds)))
        return {"samples": window.samples, "phases": window.by_phase()}

    def outcomes(self) -> list[dict[str, Any]]:
        """Return the endings over the last minute and since the oldest journal entry."""
        lately = Counter(self._ended)
        for second in self._seconds:
            lately.update(second.outcomes)
        return [
            {
                "outcome": ending,
                "lately": lately[ending],
                "total": self._outcomes[ending] + self._ended[ending],
            }
            for ending in ENDINGS
        ]

    def finished(self, wall_offset: float) -> list[dict[str, Any]]:
        """Return the newest finished actions, newest first."""
        return [
            _row(finish, at + wall_offset, code) for at, finish, code in reversed(self._finished)
        ]

    def _open_rollup(self, levels: Mapping[str, float], wall: int) -> Rollup:
        return rollup_of_second(wall, self._submitted, self._ended, levels, self._durations)


def _row(finish: Finish, wall: float, exit_code: int | None) -> dict[str, Any]:
    timing = finish.timing
    return {
        "id": finish.action_id,
        "project": finish.project,
        "task": finish.task,
        "trajectory": finish.trajectory,
        "outcome": finish.outcome.value,
        "exit_code": exit_code,
        "reward": finish.reward,
        "detail": finish.detail,
        "node": finish.node,
        "units": {
            held.resource.partition(":")[0] if held.units else held.resource: units(held.amount)
            for held in finish.allocations
        },
        "finished": wall,
        "queue_seconds": timing.queue_seconds,
        "overhead_seconds": timing.overhead_seconds,
        "execution_seconds": timing.execution_seconds,
        "act_seconds": timing.act_seconds,
    }
