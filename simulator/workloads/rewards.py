"""Rewards of AI coding: a test suite at the end of each trajectory, with a long tail, elastic.

| parameter | value | source |
|---|---|---|
| shape | lognormal | assumed; the paper only says "long-tailed" (ARL-Tangram §6.4) |
| T_ori, `light` | median 10 s, sigma 0.8 | assumed |
| T_ori, `medium` | median 30 s, sigma 1.0 | assumed |
| T_ori, `heavy` | median 60 s, sigma 1.2 | assumed |
| longest | 3,600 s | assumed |
| units | 1 to 32 | ARL-Tangram §6.4: "DoP dynamically ranges from 1 to 32" |
| parallel share | 0.97 (16.6 × at 32 cores) | assumed; the paper's E(m) is profiled, not printed |
| members of a group | one test suite, so one T_ori; each varies by sigma 0.15 | assumed |
| profiled before | T_ori and E(m) are declared | ARL-Tangram §6.1: rewards alone are profiled |
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from domain.elasticity import Elasticity
from domain.errors import InvalidRequest
from domain.resources import UnitRange, UnitSet, parse_units
from simulator.work import ActionWork


@dataclass(frozen=True)
class Rewards:
    """Durations of rewards with one unit, and their elasticity."""

    median_seconds: float = 30.0
    sigma: float = 1.0
    #: All of them are this many times as long.
    scale: float = 1.0
    most_seconds: float = 3600.0
    most_units: int = 32
    parallel_share: float = 0.97
    #: Trainers declare that running rewards may be resized.
    malleable: bool = False
    member_sigma: float = 0.15
    #: Declared T_ori is this many times the true one (1: profiled without error).
    declared_ratio: float = 1.0
    #: Declared parallel share; None: the true one.
    declared_share: float | None = None

    def __post_init__(self) -> None:
        for name in ("median_seconds", "scale", "most_seconds", "declared_ratio"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise InvalidRequest(f"rewards: {name} must be above 0, not {value!r}")
        for name in ("sigma", "member_sigma"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise InvalidRequest(f"rewards: {name} must be a number ≥ 0, not {value!r}")
        if self.most_units < 1:
            raise InvalidRequest(f"rewards: most_units must be at least 1, not {self.most_units}")
        if not 0 <= self.parallel_share <= 1:
            raise InvalidRequest(
                f"rewards: parallel_share lies in [0, 1], not at {self.parallel_share!r}"
            )

    @property
    def units(self) -> UnitSet:
        """Feasible core counts."""
        return parse_units(UnitRange(1, self.most_units), "rewards/most_units")

    @property
    def elasticity(self) -> Elasticity:
        """Return the true E(m)."""
        return Elasticity(amdahl=self.parallel_share)

    @property
    def declared_elasticity(self) -> Elasticity:
        """Return the E(m) that trainers declare."""
        share = self.declared_share
        return self.elasticity if share is None else Elasticity(amdahl=share)

    def group_seconds(self, chooser: Random) -> float:
        """Draw T_ori of one group's test suite."""
        return self.scale * self.median_seconds * math.exp(self.sigma * chooser.gauss(0.0, 1.0))

    def member_work(self, group_seconds: float, chooser: Random) -> ActionWork:
        """Draw one member's work, given its group's."""
        varied = group_seconds * math.exp(self.member_sigma * chooser.gauss(0.0, 1.0))
        return ActionWork(min(self.most_seconds, varied), self.elasticity)

    def scaled(self, scale: float) -> Rewards:
        """Return the same rewards, ``scale`` times as long."""
        return replace(self, scale=self.scale * scale)


PRESETS: Final = {
    "light": Rewards(median_seconds=10.0, sigma=0.8),
    "medium": Rewards(),
    "heavy": Rewards(median_seconds=60.0, sigma=1.2),
}
