"""The evaluation of Heddle as a report: which figures there are, what is left out, and their simulation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.evaluation.cases import FULL
from benchmarks.evaluation.report import Report
from benchmarks.fleets import motivation, overheads, results
from benchmarks.fleets.cases import GPUS, Compared, simulate_fleets
from benchmarks.fleets.plans import FleetContext, FleetPlan, FleetScale
from domain.errors import InvalidRequest
from simulator.options import known_recordings

#: What figures' names begin with; alone it names all of them.
FAMILY: Final = "heddle"
PLANS: Final[tuple[FleetPlan, ...]] = (*motivation.PLANS, *results.PLANS, *overheads.PLANS)
SCALES: Final = {
    "full": FleetScale("full", 5, 100),
    "standard": FleetScale("standard", 3, 100),
    "quick": FleetScale("quick", 1, 12),
}
#: GPUs of the paper's testbed.
_PAPER_GPUS: Final = 64
LEFT_OUT: Final = (
    ("Figures 1, 3, 8 to 11", "drawings"),
    (
        "the fine-tuned Qwen-0.6B of Figure 13",
        "not available: predictors are modelled by their correlation",
    ),
    ("64 GPUs", f"{GPUS} GPUs, with as many trajectories of each"),
    ("GPU-Direct RDMA", "a transfer has a declared bandwidth"),
)


def chosen_plans(names: Sequence[str]) -> list[FleetPlan]:
    """Return the plans of these figures."""
    known = {plan.id: plan for plan in PLANS}
    for name in names:
        if name != FAMILY and name not in known:
            raise InvalidRequest(
                f"there is no figure {name!r} beside those of Heddle; there are {FAMILY}, {', '.join(known)}"
            )
    return list(PLANS) if FAMILY in names else [known[name] for name in dict.fromkeys(names)]


def evaluate_fleets(
    names: Sequence[str], trace: Path | None, scale: str, seeds: int | None, jobs: int
) -> Report:
    """Simulate what these figures need, and return them."""
    plans, size = chosen_plans(names), SCALES[scale]
    size = FleetScale(size.name, seeds or size.seeds, size.per_gpu)
    recordings, assumed = known_recordings(trace, 0)
    cases = [case for plan in plans for case in plan.cases(size)]
    compared = Compared(simulate_fleets(cases, recordings, jobs=jobs), size.seeds)
    context = FleetContext(size, recordings, compared)
    return Report(
        scale=size.name,
        seeds=size.seeds,
        divisor=_PAPER_GPUS // GPUS,
        interactions=FULL.interactions,
        input=f"trajectories {'made up' if trace is None else '; '.join((trace.name, *assumed))}",
        figures=tuple(plan.figure(context) for plan in plans),
        left_out=LEFT_OUT,
        paper="Heddle",
        ours=(results.PAPER, results.OURS),
    )
