"""The whole evaluation: which figures there are, what is left out, and one report of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from benchmarks.evaluation import coding, gpus, headlines, planning, search, sensitivity, tails
from benchmarks.evaluation.cases import FULL, STANDARD, Case, Inputs, Scale
from benchmarks.evaluation.checkpoint import Kept
from benchmarks.evaluation.headline_sweeps import SWEEPS, maps
from benchmarks.evaluation.knobs import Sweep
from benchmarks.evaluation.plans import Context, Plan
from benchmarks.evaluation.runs import Planned, Progress, Watch, simulate_all
from benchmarks.evaluation.scale_checks import CHECKS, Check, ScalePair, pairs
from benchmarks.evaluation.stored_maps import StoredMap, stored
from domain.errors import InvalidRequest
from simulator.figures import OURS, Figure

PLANS: Final[tuple[Plan, ...]] = (
    *coding.PLANS,
    *search.PLANS,
    *gpus.PLANS,
    *headlines.PLANS,
    *planning.PLANS,
    *sensitivity.PLANS,
    *tails.PLANS,
)

#: Of the paper's evaluation, what is not simulated, and why.
LEFT_OUT: Final = (
    ("Figure 3(b)", "SM activity: what runs inside a GPU is not modelled"),
    ("Figure 6 over time", "p50 and p95 of ten RL steps stand for its windows"),
    ("time to start an engine of ServerlessLLM", "not counted: in its favour"),
)


class Beside(msgspec.Struct, frozen=True):
    """One policy on the real stack and simulated: seconds of ACT, and how far they are apart."""

    measured_mean: float
    simulated_mean: float
    mean_off: float
    measured_p95: float
    simulated_p95: float
    p95_off: float


class Measured(msgspec.Struct, frozen=True):
    """The latest measurement that `benchmarks.predicted` stored."""

    command: str
    measured_at: str
    result: dict[str, Beside]


class Report(msgspec.Struct, frozen=True):
    """Everything that came out."""

    scale: str
    seeds: int
    divisor: int
    interactions: int
    input: str
    figures: tuple[Figure, ...]
    left_out: tuple[tuple[str, str], ...]
    simulated: bool = True
    #: The only numbers that are not simulated.
    measured: Measured | None = None
    #: Whose evaluation it is, and which systems are ours.
    paper: str = "ARL-Tangram"
    ours: tuple[str, ...] = OURS
    #: Sweeps of headlines that were simulated with it, and cells of them at both sizes.
    maps: dict[str, StoredMap] = {}
    pairs: tuple[ScalePair, ...] = ()


@dataclass(frozen=True)
class Content:
    """What a report simulates: figures at its own scale, sweeps at a smaller one, and cells of them at both."""

    scale: Scale
    plans: Sequence[Plan]
    sweeps: Sequence[Sweep] = ()
    checks: Sequence[Check] = ()

    @property
    def small(self) -> Scale:
        """Return the scale of sweeps."""
        return replace(STANDARD, seeds=self.scale.seeds, interactions=self.scale.interactions)

    def cases(self) -> dict[Scale, list[Case]]:
        """Return everything that must be simulated, by scale."""
        large = [case for plan in self.plans for case in plan.cases(self.scale)]
        large += [case for check in self.checks for case in check.cases(self.scale)]
        small = [case for sweep in self.sweeps for case in sweep.all_cases(self.small)]
        small += [case for check in self.checks for case in check.cases(self.small)]
        return {self.scale: large} | ({self.small: small} if small else {})


def content(scale: Scale, ids: Sequence[str]) -> Content:
    """Return what is simulated for figures ``ids`` at ``scale``; all of the scale when none is named.

    At full scale all are the headlines, and the sweeps at 1/16 with three cells of them at both sizes: figures that
    only repeat a headline over more batches or cores have to be named. Raises InvalidRequest for an unknown figure.
    """
    if scale.name == FULL.name and not ids:
        return Content(scale, headlines.PLANS, SWEEPS, CHECKS)
    return Content(scale, chosen(ids))


def chosen(ids: Sequence[str]) -> list[Plan]:
    """Return the plans of these figures, all when none is named."""
    known = {plan.id: plan for plan in PLANS}
    for name in ids:
        if name not in known:
            raise InvalidRequest(f"there is no figure {name!r}; there are {', '.join(known)}")
    return [known[name] for name in ids] or list(PLANS)


def evaluate(
    wanted: Content,
    inputs: Inputs,
    *,
    jobs: int = 1,
    progress: Progress | None = None,
    measured: Measured | None = None,
    kept: Mapping[Scale, Kept] | None = None,
    watch: Watch | None = None,
    planned: Planned | None = None,
) -> Report:
    """Simulate what is wanted and not ``kept`` yet, and return its figures and maps."""
    scale, small = wanted.scale, wanted.small
    results = simulate_all(
        wanted.cases(),
        inputs,
        jobs=jobs,
        progress=progress,
        kept=kept or {},
        watch=watch,
        planned=planned,
    )
    context = Context(scale, inputs, results[scale])
    smaller = Context(small, inputs, results.get(small, {}))
    return Report(
        scale=scale.name,
        seeds=scale.seeds,
        divisor=scale.divisor,
        interactions=scale.interactions,
        input=inputs.source,
        figures=tuple(plan.figure(context) for plan in wanted.plans),
        left_out=LEFT_OUT,
        measured=measured,
        maps=stored(maps(wanted.sweeps, inputs, small, smaller.results)),
        pairs=pairs(smaller, context, wanted.checks),
    )
