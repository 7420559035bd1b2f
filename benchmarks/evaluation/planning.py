"""Beside the paper: is a policy ever worse than its rivals, and how many cores does an ACT need?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from benchmarks.evaluation.cases import Scale
from benchmarks.evaluation.coding import BATCH, by_cores
from benchmarks.evaluation.gpus import fewest
from benchmarks.evaluation.plans import Context, Grid, Plan, act, trajectory_act
from simulator.figures import OURS, Claim, Interval
from simulator.paired import NOT_WORSE
from simulator.sweep import LOADS, REWARDS

RIVALS: Final = ("minimum", "fixed(4)", "fixed(16)", "paper")
#: The smallest cluster of `simulator.sweep`, and all of its loads but the most crowded one.
CORES: Final = 16
CROWDS: Final = LOADS[:-1]
SYSTEMS: Final = ("kubernetes", "minimum", *OURS)
NODES: Final = (2, 3, 4, 5, 7, 10, 15)


def _cells(scale: Scale) -> Grid:
    return {
        policy: [
            (
                f"{rewards}, {load:g}",
                scale.exactly(policy, max(2, round(load * CORES)), nodes=1, cores=CORES,
                              rewards=rewards),
            )
            for rewards in REWARDS
            for load in CROWDS
        ]
        for policy in (*RIVALS, "balanced", "malleable")
    }  # fmt: skip


def _cell_claims(context: Context, grid: Grid) -> list[Claim]:
    return [_worst(context, grid, policy) for policy in OURS]


def _worst(context: Context, grid: Grid, policy: str) -> Claim:
    """Claim in how many cells ``policy`` is worse than the best rival, of the mean over seeds."""
    ratios = []
    for number, (x, cases) in enumerate(grid[policy]):
        others = [name for name in RIVALS if name != policy]
        best = min(context.measured(grid[name][number][1], act).mean for name in others)
        ratios.append((context.measured(cases, act).mean / best, str(x)))
    bad = [(ratio, x) for ratio, x in ratios if ratio > NOT_WORSE]
    count = float(len(bad))
    note = f"of {len(ratios)}"
    if bad:
        ratio, x = max(bad)
        note += f"; the worst has {ratio:.2f} times the best rival's ACT ({x})"
    what = f"cells in which {policy} is more than {NOT_WORSE} times the best rival"
    return Claim(what, None, Interval(count, count, count), note)


def _core_claims(context: Context, grid: Grid) -> list[Claim]:
    most = grid["kubernetes"][-1]
    wished = [trajectory_act(context.results[case]) for case in most[1]]
    return [
        _need(context, grid, policy, wished, f"{most[0]:g}" if isinstance(most[0], int) else "")
        for policy in SYSTEMS
    ]


def _need(context: Context, grid: Grid, policy: str, wished: Sequence[float], most: str) -> Claim:
    need = fewest(context, grid[policy], wished, trajectory_act)
    what = f"cores for the ACT that kubernetes has on {most}, {policy}"
    if need is None:
        return Claim(what, None, Interval(0.0, 0.0, 0.0), "not reached by any")
    return Claim(what, None, need, f"of {', '.join(str(n * 256) for n in NODES)}")


PLANS: Final = (
    Plan(
        id="never-worse", title="Is a policy ever worse than its rivals?",
        x="rewards, trajectories a core", y="mean ACT, seconds", kind="table", grid=_cells,
        measure=act, claims=_cell_claims,
        notes=f"{CORES} cores; `python -m benchmarks.never_worse` sweeps larger ones.",
    ),
    Plan(
        id="capacity", title="Capacity: cores for a wished ACT", x="cores",
        y="ACT of a trajectory, seconds", grid=by_cores(SYSTEMS, NODES), measure=trajectory_act,
        claims=_core_claims, log_y=True,
        notes=f"Batch {BATCH:,}. `tangram sim plan` finds the fewest nodes by bisection for any "
        "workload.",
    ),
)  # fmt: skip
