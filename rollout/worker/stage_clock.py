"""Stage clock: the phase timer of one rollout in an event loop, with an alarm when a limit is used up."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from domain.rollouts import Stage
from rollout.core.phase_timer import PhaseTimer


class TimerHold:
    """A wait that does not count; `ran` says how much of it did."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def ran(self, seconds: float) -> None:
        """An action ran for so long meanwhile."""
        self.seconds += seconds


class StageClock:
    """Counts the time of stages, and calls ``expired`` once when it is used up."""

    def __init__(
        self, timer: PhaseTimer, now: Callable[[], float], expired: Callable[[str], None]
    ) -> None:
        self._timer = timer
        self._now = now
        self._expired = expired
        self._alarm: asyncio.TimerHandle | None = None

    def begin(self, stage: Stage) -> None:
        """The lease of a stage is held."""
        self._timer.begin(stage, self._now())
        self._arm()

    def end(self) -> None:
        """The stage is over."""
        self._timer.end(self._now())
        self._arm()

    @contextmanager
    def held(self) -> Iterator[TimerHold]:
        """Stop while the stage waits."""
        hold = TimerHold()
        self._timer.hold(self._now())
        self._arm()
        try:
            yield hold
        finally:
            self._timer.free(self._now(), hold.seconds)
            self._arm()

    def active(self, stage: Stage) -> float:
        """Return the time that a stage has used, in seconds."""
        return self._timer.active(stage, self._now())

    def remaining(self) -> float:
        """Return what the present stage may still use."""
        return self._timer.remaining(self._now())

    def check(self) -> None:
        """Call ``expired`` when the time is used up."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._timer.remaining(self._now()) <= 0.0:
            self._expired(self._timer.why_over(self._now()))
        else:
            self._arm()

    def _arm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        left = self._timer.remaining(self._now())
        if not self._timer.held and math.isfinite(left):
            self._alarm = asyncio.get_running_loop().call_later(left, self.check)
