"""Tails and fairness: what a trainer waits for, and how evenly tasks are served.

Not from the paper. A synchronous trainer waits for the slowest trajectory of a step (ARL-Tangram §2), which
a mean does not show; Jain's index (`simulator.result.fairness`) compares the stretch of tasks that share a
cluster. The cases are those of other figures, so only policies that those leave out are simulated more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from benchmarks.evaluation.cases import Scale
from benchmarks.evaluation.coding import BATCH, FIXED, PODS
from benchmarks.evaluation.gpus import BATCH as GPU_BATCH
from benchmarks.evaluation.gpus import SYSTEMS
from benchmarks.evaluation.plans import Grid, OptionalMeasure, Plan, act, step
from simulator.figures import OURS

COLUMNS: Final[Mapping[str, OptionalMeasure]] = {
    "mean ACT": act,
    "p50 ACT": lambda result: result.whole.act.p50,
    "p95 ACT": lambda result: result.whole.act.p95,
    "p99 ACT": lambda result: result.whole.act.p99,
    "slowest trajectory": lambda result: result.trajectory_seconds.most,
    "step": step,
    "Jain's index of tasks": lambda result: result.fairness,
}


def _coding(scale: Scale) -> Grid:
    return {
        policy: [("all", scale.case(policy, BATCH))]
        for policy in (*PODS, "minimum", *FIXED, *OURS, "makespan")
    }


def _crowded(scale: Scale) -> Grid:
    """Return a cluster with four trajectories a core."""
    known: Grid = {
        f"makespan, lengths declared, error {error:g}": [
            ("all", scale.case("makespan", BATCH, nodes=5, cores=64, length_error=error))
        ]
        for error in (0.0, 0.5)
    }
    undeclared: Grid = {
        policy: [("all", scale.case(policy, BATCH, nodes=5, cores=64))]
        for policy in ("minimum", *FIXED, *OURS, "makespan")
    }
    return {**undeclared, **known}


def _both(scale: Scale) -> Grid:
    return {
        system: [("all", scale.case(system, GPU_BATCH, workload="mopd-search"))]
        for system in SYSTEMS
    }


def _plan(name: str, title: str, grid: Callable[[Scale], Grid], notes: str = "") -> Plan:
    return Plan(
        id=f"tails{name}", title=f"Tails and fairness: {title}", x="policy",
        y="seconds, and Jain's index", grid=grid, measure=act, columns=COLUMNS, kind="table",
        notes=notes,
    )  # fmt: skip


PLANS: Final = (
    _plan("", "AI coding, 1,280 trajectories on 1,280 cores", _coding),
    _plan("-crowded", "AI coding, 1,280 trajectories on 320 cores", _crowded),
    _plan(
        "-tasks", "MOPD and DeepSearch at once", _both,
        "The index is over the tasks: 1 when their actions are stretched alike.",
    ),
)  # fmt: skip
