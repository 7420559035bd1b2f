"""What passes through the system: ends and submissions by second, durations, outcomes."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from domain.action import Outcome
from domain.decisions import Finish
from domain.resources import units
from tangram_web.live.histogram import PHASES, PhaseWindow, percentile
from tangram_web.live.history import LENGTH, History
from tangram_web.live.rings import Moment, moment

#: Seconds behind the percentiles and the outcome counts of a frame.
WINDOW_SECONDS: Final = 60
#: Seconds behind the percentiles and means of one point of the charts.
POINT_SECONDS: Final = 10
#: Newest finished actions that are kept as rows.
ROWS: Final = 20
SHARES: Final = (50, 95, 99)


class Flow:
    """Counts of what happened lately, second by second."""

    def __init__(self) -> None:
        self.history = History()
        #: The first second it counted; None before.
        self.began: int | None = None
        self._phases = PhaseWindow(WINDOW_SECONDS)
        self._outcomes: Counter[Outcome] = Counter()
        self._lately: deque[Counter[Outcome]] = deque([Counter()], WINDOW_SECONDS)
        self._newest: deque[tuple[float, Finish]] = deque(maxlen=ROWS)
        self._submitted = 0
        self._finished = 0

    def submit(self) -> None:
        """Count a submission in the open second."""
        self._submitted += 1

    def finish(self, finish: Finish, at: float) -> None:
        """Count an end in the open second."""
        self._finished += 1
        self._outcomes[finish.outcome] += 1
        self._lately[-1][finish.outcome] += 1
        self._phases.add(finish.timing)
        self._newest.append((at, finish))

    @property
    def stirred(self) -> bool:
        """Whether something was submitted or ended in the open second."""
        return bool(self._submitted or self._finished)

    def begin(self, second: int) -> None:
        """Open the first second."""
        self.began = self.history.open_second = second

    def skip_to(self, second: int) -> None:
        """After a silence longer than every window, start the points again shortly before now."""
        open_second = self.history.open_second
        if open_second is not None and second - open_second > LENGTH + WINDOW_SECONDS:
            self.history.open_second = second - LENGTH - WINDOW_SECONDS

    def moment(self, levels: Mapping[str, float], wall: int) -> Moment:
        """Return what happened in the open second, for weeks; ``wall`` is when it began."""
        outcomes = {outcome.value: count for outcome, count in self._lately[-1].items()}
        counts, sums = self._phases.counts(1), self._phases.sums(1)
        return moment(wall, self._submitted, levels, outcomes, counts, sums)

    def seal(self, levels: Mapping[str, float]) -> None:
        """Close the open second: its rates are final, ``levels`` are those at its end."""
        rates = {"submitted": float(self._submitted), "finished": float(self._finished)}
        self.history.seal({**levels, **rates, **self._point_durations()})
        self._submitted = self._finished = 0
        self._phases.advance()
        self._lately.append(Counter())

    def durations(self) -> dict[str, Any]:
        """Return percentiles and means by phase over the last minute, and of how many actions."""
        counts = self._phases.counts(WINDOW_SECONDS)
        sums = self._phases.sums(WINDOW_SECONDS)
        samples = int(counts[-1].sum())
        phases = {
            name: {f"p{share}": percentile(counts[row], share / 100) for share in SHARES}
            | {"mean": float(sums[row]) / samples if samples else None}
            for row, name in enumerate(PHASES)
        }
        return {"samples": samples, "phases": phases}

    def outcomes(self) -> list[dict[str, Any]]:
        """Return how actions ended, over the last minute and since the journal's oldest entry."""
        lately: Counter[Outcome] = sum(self._lately, Counter())
        return [
            {"outcome": outcome.value, "lately": lately[outcome], "total": self._outcomes[outcome]}
            for outcome in Outcome
        ]

    def newest(self, wall_offset: float) -> list[dict[str, Any]]:
        """Return the newest finished actions, newest first."""
        return [_row(finish, at + wall_offset) for at, finish in reversed(self._newest)]

    def _point_durations(self) -> dict[str, float]:
        if not any(islice(reversed(self._lately), POINT_SECONDS)):
            return {}
        counts = self._phases.counts(POINT_SECONDS)
        samples = int(counts[-1].sum())
        means = self._phases.sums(POINT_SECONDS) / samples
        point = {f"act_p{share}": percentile(counts[-1], share / 100) or 0.0 for share in SHARES}
        return point | {f"{name}_mean": float(means[row]) for row, name in enumerate(PHASES[:-1])}


def _row(finish: Finish, wall: float) -> dict[str, Any]:
    timing = finish.timing
    return {
        "id": finish.action_id,
        "project": finish.project,
        "task": finish.task,
        "trajectory": finish.trajectory,
        "outcome": finish.outcome.value,
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
