"""Phase timer: time of a rollout's stages with their leases, less the waits of inner actions (I9).

Rules
1. The timer counts from `begin`, when the lease is granted, to `end`. Waiting for the lease is not counted.
2. `hold` stops it while the handler waits for an action, or for a backend; holds nest. When the last one is freed,
   the time that the actions ran is charged, at most the time of the hold. So the queue of an action never counts.
3. Time of earlier attempts and generations counts: `spent` comes from the log.
4. The limit of a stage and that of all stages together hold at once; `remaining` is the smaller rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from domain.rollouts import STAGES, Stage, StageLimits


class PhaseTimer:
    """Times of one rollout's stages. ``at`` is seconds of any clock that does not run backward."""

    def __init__(self, limits: StageLimits, spent: Mapping[Stage, float]) -> None:
        self._limits = limits
        self._spent = {stage: spent.get(stage, 0.0) for stage in STAGES}
        self._stage: Stage | None = None
        self._since = 0.0
        self._holds = 0
        self._charged = 0.0

    @property
    def held(self) -> bool:
        """Whether it is stopped within a stage."""
        return self._holds > 0

    def begin(self, stage: Stage, at: float) -> None:
        """Count time of ``stage`` from now on."""
        self._stage, self._since, self._holds, self._charged = stage, at, 0, 0.0

    def end(self, at: float) -> None:
        """Stop counting. Holds that are open are ended without a charge."""
        self._settle(at)
        self._stage, self._holds = None, 0

    def hold(self, at: float) -> None:
        """Stop while the stage waits."""
        if self._holds == 0:
            self._settle(at)
            self._charged = 0.0
        self._holds += 1

    def free(self, at: float, ran_seconds: float = 0.0) -> None:
        """End a hold, in which an action ran for ``ran_seconds``."""
        if self._holds == 0:
            return
        self._holds -= 1
        self._charged += max(0.0, ran_seconds)
        if self._holds == 0 and self._stage is not None:
            self._spent[self._stage] += min(self._charged, max(0.0, at - self._since))
            self._since = at

    def active(self, stage: Stage, at: float) -> float:
        """Return the time that ``stage`` has used, in seconds."""
        running = self._stage is stage and not self._holds
        return self._spent[stage] + (max(0.0, at - self._since) if running else 0.0)

    def remaining(self, at: float) -> float:
        """Return what the present stage may still use, at least 0; endless without a stage."""
        if self._stage is None:
            return math.inf
        left = self._limits.of(self._stage) - self.active(self._stage, at)
        if self._limits.total_seconds is not None:
            used = sum(self.active(stage, at) for stage in STAGES)
            left = min(left, self._limits.total_seconds - used)
        return max(0.0, left)

    def why_over(self, at: float) -> str:
        """Return which limit is used up."""
        stage = self._stage or Stage.INIT
        if self.active(stage, at) >= self._limits.of(stage):
            return f"{stage.upper()} took longer than {self._limits.of(stage):g} s"
        return f"its stages took longer than {self._limits.total_seconds:g} s together"

    def _settle(self, at: float) -> None:
        if self._stage is not None and not self._holds:
            self._spent[self._stage] += max(0.0, at - self._since)
        self._since = at
