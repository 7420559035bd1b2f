"""A workload of one's own: trajectories of coding agents, drawn from stated distributions.

The mixture follows what has been measured of coding agents on SWE tasks (AgentCgroup, arXiv
2602.09345): many short file operations, few long commands, low CPU on average, bursts in tests.

| family | share | duration: median, sigma, limit | CPU of a core: median, sigma |
|---|---|---|---|
| file   | 0.62  | 0.025 s, 0.6, 10 s   | 8 %, 0.35 |
| search | 0.10  | 0.03 s, 1.0, 20 s    | 7 %, 0.35 |
| python | 0.12  | 4 s, 0.9, 30 s       | 7 %, 0.5 |
| test   | 0.13  | 6 s, 0.9, 260 s      | 8 %, 0.5; one in five instead 110 %, 0.3 |
| install| 0.03  | 7 s, 0.7, 120 s      | 9 %, 0.4 |

All are lognormal. Think time: median 2.5 s, sigma 1.1, at most 137 s, none before the first step.
Steps of a trajectory: median 43, sigma 0.6, 3 to 200.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class Lognormal:
    """A lognormal distribution by its median, cut off at ``most``."""

    median: float
    sigma: float
    most: float = math.inf

    def draw(self, chooser: random.Random) -> float:
        return min(self.most, self.median * math.exp(self.sigma * chooser.gauss(0.0, 1.0)))


@dataclass(frozen=True)
class Family:
    """One kind of command."""

    name: str
    share: float
    seconds: Lognormal
    cpu_percent: Lognormal
    burst_share: float = 0.0


BURST: Final = Lognormal(110.0, 0.3, 200.0)
THINK: Final = Lognormal(2.5, 1.1, 137.0)
STEPS: Final = Lognormal(43.0, 0.6, 200.0)
FAMILIES: Final = (
    Family("file", 0.62, Lognormal(0.025, 0.6, 10.0), Lognormal(8.0, 0.35, 100.0)),
    Family("search", 0.10, Lognormal(0.03, 1.0, 20.0), Lognormal(7.0, 0.35, 100.0)),
    Family("python", 0.12, Lognormal(4.0, 0.9, 30.0), Lognormal(7.0, 0.5, 100.0)),
    Family("test", 0.13, Lognormal(6.0, 0.9, 260.0), Lognormal(8.0, 0.5, 100.0), burst_share=0.2),
    Family("install", 0.03, Lognormal(7.0, 0.7, 120.0), Lognormal(9.0, 0.4, 100.0)),
)


def generate(trajectories: int | None, seed: int) -> Iterator[dict[str, Any]]:
    """Yield trajectories in the trace format, the same ones for the same seed.

    None yields for ever. The first N do not depend on how many are asked for.
    """
    for number in itertools.count() if trajectories is None else range(trajectories):
        # A generator of its own for each: number 7 is the same in every run.
        yield _trajectory(number, random.Random(f"{seed}/{number}"))


def _trajectory(number: int, chooser: random.Random) -> dict[str, Any]:
    families = chooser.choices(
        FAMILIES, [family.share for family in FAMILIES], k=max(3, round(STEPS.draw(chooser)))
    )
    steps: list[dict[str, Any]] = []
    start = 0.0
    for family in families:
        think = THINK.draw(chooser) if steps else 0.0
        step = _step(family, start + think, think, chooser)
        start = step["start_s"] + step["dur_s"]
        steps.append(step)
    return {
        "id": f"generated-{number:05d}",
        "wall_s": round(start, 3),
        "mem_mb_peak": max(step["mem_mb_max"] for step in steps),
        "steps": steps,
    }


def _step(family: Family, start: float, think: float, chooser: random.Random) -> dict[str, Any]:
    burst = chooser.random() < family.burst_share
    cpu = BURST if burst else family.cpu_percent
    return {
        "start_s": round(start, 3),
        "think_s": round(think, 3),
        "dur_s": round(family.seconds.draw(chooser), 3),
        "family": family.name,
        "cpu_pct_mean": round(cpu.draw(chooser), 1),
        "mem_mb_max": round(chooser.uniform(160.0, 400.0), 1),
    }
