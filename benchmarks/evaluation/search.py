"""Figures of DeepSearch: ARL-Tangram Figures 3(d), 6 and 7."""

from __future__ import annotations

from typing import Final

from benchmarks.evaluation.cases import Scale
from benchmarks.evaluation.plans import Context, Grid, Plan, act, point, step
from simulator.figures import OURS, Claim
from simulator.result import Result

#: ARL-Tangram §6.1.
BATCH: Final = 2048
SYSTEMS: Final = ("unmanaged", "minimum", *OURS)


def _grid(scale: Scale) -> Grid:
    return {
        system: [("all", scale.case(system, BATCH, workload="deep-search"))] for system in SYSTEMS
    }


def effective_step(result: Result) -> float:
    """Return how long a step would be of which every trajectory is of use.

    A trajectory whose calls failed teaches nothing, so its place in the batch is done again.
    """
    failed = sum(n for name, n in result.outcomes.items() if name != "completed")
    judged = result.rewards.actions if result.rewards else 0
    return step(result) * (judged + failed) / max(1, judged)


def _claims(context: Context, grid: Grid) -> list[Claim]:
    measures = (
        ("mean ACT of an action", act, "above 1", "who gives up early waits less"),
        ("RL step", step, "1.5", "as it took"),
        ("RL step with ineffective trajectories done again", effective_step, "1.5", ""),
    )
    return [
        Claim(
            f"{name}, unmanaged over {policy}",
            paper if policy == "paper" else None,
            context.ratio(point(grid, "unmanaged", "all"), point(grid, policy, "all"), measure),
            note,
            "higher",
        )
        for name, measure, paper, note in measures
        for policy in OURS
    ]


def swing(result: Result) -> float:
    """Return the largest number of invocations in one stretch of a run over the smallest."""
    counts = [window.actions for window in result.windows if window.actions]
    return max(counts) / min(counts)


def _swing_claims(context: Context, grid: Grid) -> list[Claim]:
    ours = context.measured(point(grid, "minimum", "all"), swing)
    return [
        Claim(
            "invocations in the busiest of 40 stretches over the calmest", "up to 1,000", ours,
            "of one step; the paper's spans steps, with training between them",
        )
    ]  # fmt: skip


PLANS: Final = (
    Plan(
        id="3d", title="Figure 3(d), DeepSearch: invocations over time", x="system",
        y="busiest over calmest", kind="bars", grid=_grid, measure=swing, claims=_swing_claims,
    ),
    Plan(
        id="6-search", title="Figures 6 and 7, DeepSearch: ACT of an action", x="system",
        y="seconds", kind="bars", grid=_grid, measure=act, claims=_claims,
        notes="Limits of the APIs are assumed (`workloads/deep_search`); the judge's GPUs count as "
        "places that may be taken at once.",
    ),
)  # fmt: skip
