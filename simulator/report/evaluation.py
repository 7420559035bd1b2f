"""The whole evaluation: which figures there are, what is left out, and one report of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from domain.errors import InvalidRequest
from simulator.report import coding, search, sensitivity
from simulator.report.cases import Inputs, Scale
from simulator.report.figure import Context, Figure, Plan
from simulator.report.runs import Progress, simulate

PLANS: Final[tuple[Plan, ...]] = (*coding.PLANS, *search.PLANS, *sensitivity.PLANS)

#: Of the paper's evaluation, what is not simulated, and why.
LEFT_OUT: Final = (
    ("Figure 3(b)", "SM activity: GPUs are not modelled"),
    ("Figures 6, 7: MOPD and MOPD+Search", "need the chunks and restore times of a GPU manager"),
    ("Figure 8(b)", "the same; so SGLang and ServerlessLLM stand beside nothing yet"),
    ("29 % of the GPUs for the same ACT", "the same"),
    ("Table 1: MOPD", "the same"),
    (
        "timeouts of the Kubernetes control plane",
        "nothing times out in the baseline: in its favour",
    ),
)


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
) -> Report:
    """Simulate what ``plans`` need, and return their figures."""
    cases = [case for plan in plans for case in plan.cases(scale)]
    results = simulate(cases, inputs, scale, jobs=jobs, progress=progress)
    context = Context(scale, inputs, results)
    return Report(
        scale=scale.name,
        seeds=scale.seeds,
        divisor=scale.divisor,
        interactions=scale.interactions,
        input=inputs.source,
        figures=tuple(plan.figure(context) for plan in plans),
        left_out=LEFT_OUT,
    )
