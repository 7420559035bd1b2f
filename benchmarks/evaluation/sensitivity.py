"""Sensitivity: how much results depend on durations, E(m), depth, bursts and noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from benchmarks.evaluation.cases import Scale
from benchmarks.evaluation.gpus import BATCH as MOPD_BATCH
from benchmarks.evaluation.plans import Grid, Plan, act

#: Rate of arrivals within a burst over the mean rate.
PEAKS: Final = (1.0, 2.0, 4.0, 8.0, 16.0)
MOPD_SYSTEMS: Final = ("sglang(4)", "paper", "malleable")
POLICIES: Final = ("minimum", "fixed(4)", "paper", "balanced", "malleable")
#: A crowded cluster with long rewards: where decisions matter most.
BATCH, NODES = 640, 2


def varied(field: str, values: Sequence[Any], policies: Sequence[str] = POLICIES) -> Any:
    """Return a grid over one parameter of a case."""

    def grid(scale: Scale) -> Grid:
        return {
            policy: [
                (value, scale.case(policy, BATCH, nodes=NODES, rewards="heavy", **{field: value}))
                for value in values
            ]
            for policy in policies
        }

    return grid


def _peaks(scale: Scale) -> Grid:
    fields = {"workload": "mopd(calibrated)"}
    return {
        system: [
            (peak, scale.case(system, MOPD_BATCH, calibration=(("peak_ratio", peak),), **fields))
            for peak in PEAKS
        ]
        for system in MOPD_SYSTEMS
    }


def _plan(name: str, title: str, x: str, grid: Any, notes: str = "") -> Plan:
    return Plan(
        id=f"sensitivity-{name}", title=f"Sensitivity: {title}", x=x, y="mean ACT, seconds",
        grid=grid, measure=act, notes=notes,
    )  # fmt: skip


PLANS: Final = (
    _plan(
        "durations", "rewards declare so many times their true duration", "declared / true",
        varied("declared_ratio", (0.25, 0.5, 1.0, 2.0, 4.0)),
    ),
    _plan(
        "elasticity", "rewards declare another parallel share (true: 0.97)", "declared share",
        varied("declared_share", (0.5, 0.8, 0.9, 0.97, 1.0)),
    ),
    _plan(
        "depth", "how many counts the first one behind tries (Algorithm 2)", "depth",
        varied("depth", (1, 2, 3, 4), ("paper", "balanced", "malleable")),
    ),
    _plan(
        "bursts", "think times so many times as long", "think / recorded",
        varied("think_ratio", (0.1, 0.3, 1.0, 3.0)),
        "Shorter thinking means that more trajectories act at once.",
    ),
    _plan(
        "arrivals", "calls of MOPD arrive in ten bursts a rollout", "rate within a burst / mean rate",
        _peaks, "Calibrated workload, batch 2,048 on 40 GPUs; the mean rate stays.",
    ),
    _plan(
        "noise", "spread of think times and durations around the recorded ones", "sigma",
        varied("jitter_sigma", (0.0, 0.25, 0.5, 1.0)),
    ),
)  # fmt: skip
