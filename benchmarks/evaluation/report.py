"""The whole evaluation: which figures there are, what is left out, and one report of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from benchmarks.evaluation import coding, gpus, headlines, planning, search, sensitivity, tails
from benchmarks.evaluation.cases import Inputs, Scale
from benchmarks.evaluation.checkpoint import Kept
from benchmarks.evaluation.plans import Context, Plan
from benchmarks.evaluation.runs import Progress, Watch, simulate
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
    ("Figure 6 over ten training steps", "ten steps are simulated, of calibrated workloads alone"),
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


def chosen(ids: Sequence[str]) -> list[Plan]:
    """Return the plans of these figures, all when none is named."""
    known = {plan.id: plan for plan in PLANS}
    for name in ids:
        if name not in known:
            raise InvalidRequest(f"there is no figure {name!r}; there are {', '.join(known)}")
    return [known[name] for name in ids] or list(PLANS)


def evaluate(
    plans: Sequence[Plan],
    inputs: Inputs,
    scale: Scale,
    *,
    jobs: int = 1,
    progress: Progress | None = None,
    measured: Measured | None = None,
    kept: Kept | None = None,
    watch: Watch | None = None,
) -> Report:
    """Simulate what ``plans`` need and is not ``kept`` yet, and return their figures."""
    cases = [case for plan in plans for case in plan.cases(scale)]
    results = simulate(cases, inputs, scale, jobs=jobs, progress=progress, kept=kept, watch=watch)
    context = Context(scale, inputs, results)
    return Report(
        scale=scale.name,
        seeds=scale.seeds,
        divisor=scale.divisor,
        interactions=scale.interactions,
        input=inputs.source,
        figures=tuple(plan.figure(context) for plan in plans),
        left_out=LEFT_OUT,
        measured=measured,
    )
