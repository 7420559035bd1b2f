"""How long a report will take: its simulations, and the actions a second of earlier ones.

Earlier ones are the parts that `python -m benchmarks.evaluation` stored: of each workload under each policy, how many
actions one process simulated in a second. They are of other sizes and of other hours of a machine, so an estimate
is right to about a factor of two.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import harmonic_mean
from typing import Any, Final, NamedTuple

from benchmarks.evaluation.runs import Job
from benchmarks.record import RESULTS

#: Stored evaluations with parts; later ones win.
STORED: Final = ("evaluation.json", "evaluation-calibrated.json", "evaluation-full.json")
#: Actions a second where nothing is stored: the slowest workload of the development machine.
UNKNOWN: Final = 300.0

#: (workload, policy) → actions a second of one process.
Rates = Mapping[tuple[str, str], float]


class Estimate(NamedTuple):
    """What is left to simulate, and about how many seconds that takes."""

    simulations: int
    actions: int
    seconds: float

    def __str__(self) -> str:
        minutes = (
            f"about {self.seconds / 60:.0f} min" if self.seconds >= 60 else "less than a minute"
        )
        return f"{self.simulations:,} simulations of {self.actions:,} actions, {minutes}"


def estimate(left: Mapping[Job, int], rates: Rates, jobs: int) -> Estimate:
    """Return how long the simulations ``left`` take in ``jobs`` processes."""
    work = sum(
        actions / rate(rates, job.case.workload, job.case.policy) for job, actions in left.items()
    )
    return Estimate(len(left), sum(left.values()), work / jobs)


def rate(rates: Rates, workload: str, policy: str) -> float:
    """Return the actions a second of ``policy``; else of policies of its family, else of the workload."""
    if (workload, policy) in rates:
        return rates[workload, policy]
    same = {name: found for (other, name), found in rates.items() if other == workload}
    family = policy.partition("(")[0]
    alike = [found for name, found in same.items() if name.partition("(")[0] == family]
    known = alike or list(same.values())
    return harmonic_mean(known) if known else UNKNOWN


def stored_rates(folder: Path = RESULTS) -> dict[tuple[str, str], float]:
    """Return the rates of the stored evaluations; none where none is stored."""
    bodies = (json.loads(path.read_text()) for name in STORED if (path := folder / name).exists())
    return {key: found for body in bodies for key, found in _rates(body.get("parts", {}))}


def _rates(parts: Mapping[str, Mapping[str, Any]]) -> Iterable[tuple[tuple[str, str], float]]:
    for name, part in parts.items():
        workload, _, policy = name.partition(" ")
        if policy and part["seconds"] > 0:
            yield (workload, policy), part["actions"] / part["seconds"]
