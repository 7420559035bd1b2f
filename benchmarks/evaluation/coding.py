"""Figures of AI coding: ARL-Tangram Figures 3(a, c), 6, 7, 8(a), 9 and Table 1."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any, Final

from benchmarks.evaluation.cases import Scale, scene
from benchmarks.evaluation.plans import Context, Grid, Plan, act, point, step, trajectory_act
from simulator.figures import OURS, Claim, Interval, interval
from simulator.result import Result
from simulator.work import ActionWork
from simulator.workloads.program import Act, Think

PODS: Final = ("kubernetes", "kubernetes(110)", "kubernetes(timeouts)", "kubernetes(memory)")
FIXED: Final = ("fixed(4)", "fixed(16)")
#: ARL-Tangram §6.1.
BATCH: Final = 1280
#: Figure 8(a) left runs from 128 to 1,536 trajectories.
BATCHES: Final = (128, 256, 512, 768, 1024, 1280, 1536)
#: Nodes of 256 cores. Figure 8(a) right names 768 cores as the fewest; §6.1 has 15 nodes.
NODES: Final = (3, 5, 10, 15)


def by_batch(policies: Sequence[str], batches: Sequence[int] = BATCHES, **fields: Any) -> Any:
    """Return a grid over batches."""

    def grid(scale: Scale) -> Grid:
        return {
            policy: [(batch, scale.case(policy, batch, **fields)) for batch in batches]
            for policy in policies
        }

    return grid


def by_cores(policies: Sequence[str], nodes: Sequence[int] = NODES, **fields: Any) -> Any:
    """Return a grid over cores."""

    def grid(scale: Scale) -> Grid:
        return {
            policy: [(n * 256, scale.case(policy, BATCH, nodes=n, **fields)) for n in nodes]
            for policy in policies
        }

    return grid


def _against(
    context: Context, grid: Grid, rival: str, x: float, what: str, paper: str | None
) -> list[Claim]:
    """Claim how many times the rival's ACT of a trajectory is ours, for each of our policies."""
    return [
        Claim(
            f"{what}, {rival} over {policy}",
            paper if policy == "paper" else None,
            context.ratio(point(grid, rival, x), point(grid, policy, x), trajectory_act),
            better="higher",
        )
        for policy in OURS
    ]


def _left_claims(context: Context, grid: Grid) -> list[Claim]:
    claims = [
        claim
        for rival in PODS
        for x, paper in ((128, "3.1"), (1536, "27.7"))
        for claim in _against(context, grid, rival, x, f"ACT at batch {x}", paper)
    ]
    for policy in OURS:
        crowded, calm = point(grid, policy, 1536), point(grid, policy, 128)
        growth = context.ratio(crowded, calm, trajectory_act)
        printed = "below 2" if policy == "paper" else None
        what = f"ACT at batch 1536 over batch 128, {policy}"
        claims.append(Claim(what, printed, growth, better="lower"))
    return claims


def _right_claims(context: Context, grid: Grid) -> list[Claim]:
    return [
        claim
        for rival in PODS
        for x, paper in ((768, "1.89"), (1280, "up to 4.33"))
        for claim in _against(context, grid, rival, x, f"ACT on {x} cores", paper)
    ]


def _fixed_claims(context: Context, grid: Grid) -> list[Claim]:
    wanted = (("fixed(4)", 256, "2.0"), ("fixed(16)", 1280, "3.0"))
    return [
        claim
        for rival, x, paper in wanted
        for claim in _against(context, grid, rival, x, f"ACT at batch {x}", paper)
    ]


def _fixed_core_claims(context: Context, grid: Grid) -> list[Claim]:
    return _against(context, grid, "fixed(4)", 1280, "ACT on 1x cores (taken as 1,280)", "1.8")


def _reward_act(result: Result) -> float:
    return result.rewards.act.mean if result.rewards else 0.0


def interaction_act(result: Result) -> float:
    """Return the mean ACT of a trajectory's interactions together."""
    part = result.interactions
    rewards = result.rewards.actions if result.rewards else 1
    return part.act.mean * part.actions / rewards if part else 0.0


def _breakdown(scale: Scale) -> Grid:
    return {
        policy: [("all", scale.case(policy, BATCH))] for policy in (*PODS, "minimum", *FIXED, *OURS)
    }


def _breakdown_claims(context: Context, grid: Grid) -> list[Claim]:
    measures = (
        ("interactions", interaction_act, "9.0"),
        ("reward", _reward_act, "2.8"),
        ("both", trajectory_act, "4.3"),
        ("RL step", step, "1.4"),
    )
    return [
        Claim(
            f"duration of {name}, {rival} over {policy}",
            paper if policy == "paper" else None,
            context.ratio(point(grid, rival, "all"), point(grid, policy, "all"), measure),
            better="higher",
        )
        for rival in PODS
        for name, measure, paper in measures
        for policy in OURS
    ]


def _table(scale: Scale) -> Grid:
    return {
        policy: [(batch, scale.case(policy, batch)) for batch in (1280, 1536)] for policy in OURS
    }


def _table_claims(context: Context, grid: Grid) -> list[Claim]:
    printed = {
        1280: {"execution": "0.975", "queue": "0.015", "overhead": "0.024"},
        1536: {"execution": "1.206", "queue": "0.428", "overhead": "0.036"},
    }
    claims = []
    for policy in OURS:
        for batch, parts in printed.items():
            for name, paper in parts.items():

                def part(result: Result, name: str = name) -> float:
                    return float(getattr(result.whole, name).mean)

                ours = context.measured(point(grid, policy, batch), part)
                what = f"mean {name} at batch {batch}, {policy}, s"
                claims.append(Claim(what, paper if policy == "paper" else None, ours))
            share = context.measured(
                point(grid, policy, batch),
                lambda result: result.whole.overhead.mean / result.whole.execution.mean,
            )
            what = f"overhead over execution at batch {batch}, {policy}"
            printed_share = "below 0.03" if policy == "paper" else None
            note = "an input: the simulator adds measured overheads"
            claims.append(Claim(what, printed_share, share, note, "lower", is_input=True))
    return claims


def _half(scale: Scale) -> Grid:
    return {
        policy: [(name, scale.case(policy, BATCH, nodes=nodes)) for name, nodes in
                 (("1x", 6), ("0.5x", 3))]
        for policy in ("kubernetes", *OURS)
    }  # fmt: skip


def _half_claims(context: Context, grid: Grid) -> list[Claim]:
    return [
        Claim(
            f"{name} with half the cores over all of them, {policy}",
            "longer" if policy == "kubernetes" else None,
            context.ratio(point(grid, policy, "0.5x"), point(grid, policy, "1x"), measure),
        )
        for policy in ("kubernetes", *OURS)
        for name, measure in (("ACT", act), ("step duration", step))
    ]


def acting_share(context: Context) -> Interval:
    """Return the share of a trajectory's time in which it acts, alone on four cores a reward."""
    shares = []
    for case in context.scale.case("kubernetes", BATCH):
        scale = context.scale
        workload = scene(case, context.inputs.at(scale), scale).workload
        each = [_shares(list(rollout.program())) for rollout in next(iter(workload.steps()))]
        shares.append(fmean(each))
    return interval(shares)


def _shares(moves: Sequence[Think | Act]) -> float:
    acting = sum(_alone(move.work) for move in moves if isinstance(move, Act))
    thinking = sum(move.seconds for move in moves if isinstance(move, Think))
    return acting / (acting + thinking)


def _alone(work: ActionWork) -> float:
    return work.seconds(4000) if work.elasticity is not None else work.base_seconds


def _share_claims(context: Context, grid: Grid) -> list[Claim]:
    what = "share of a trajectory in which it acts, rewards on four cores"
    note = "of the input, before anything waits"
    return [Claim(what, "0.47", acting_share(context), note, is_input=True)]


SIX = Plan(
    id="6", title="Figure 6, AI coding: mean ACT of a trajectory by system", x="system",
    y="seconds", kind="bars", grid=_breakdown, measure=trajectory_act, claims=_share_claims,
    notes="Figure 3(c) is the claim below. 1,280 trajectories on 1,280 cores, as in Figure 8(a).",
)  # fmt: skip

PLANS: Final = (
    Plan(
        id="3a", title="Figure 3(a): half the cores", x="cores", y="mean ACT, seconds", kind="bars",
        grid=_half, measure=act, claims=_half_claims,
        notes="1x is taken as 1,536 cores; the paper names no number.",
    ),
    SIX,
    Plan(
        id="7", title="Figure 7, AI coding: interactions and reward of a trajectory", x="system",
        y="seconds of a reward", kind="bars", grid=_breakdown, measure=_reward_act,
        claims=_breakdown_claims,
    ),
    Plan(
        id="8a-left", title="Figure 8(a) left: batch size on 1,280 cores", x="RL batch size",
        y="ACT of a trajectory, seconds", grid=by_batch((*PODS, "minimum", *OURS)),
        measure=trajectory_act, claims=_left_claims, log_y=True,
    ),
    Plan(
        id="8a-right", title="Figure 8(a) right: cores at batch 1,280", x="cores",
        y="ACT of a trajectory, seconds", grid=by_cores((*PODS, "minimum", *OURS)),
        measure=trajectory_act, claims=_right_claims, log_y=True,
    ),
    Plan(
        id="9-left", title="Figure 9: fixed degrees of parallelism, by batch size",
        x="RL batch size", y="ACT of a trajectory, seconds",
        grid=by_batch((*FIXED, *OURS), (256, 512, 1024, 1280)), measure=trajectory_act,
        claims=_fixed_claims, log_y=True,
    ),
    Plan(
        id="9-right", title="Figure 9: fixed degrees of parallelism, by cores", x="cores",
        y="ACT of a trajectory, seconds", grid=by_cores((*FIXED, *OURS), (5, 10, 15)),
        measure=trajectory_act, claims=_fixed_core_claims, log_y=True,
    ),
    Plan(
        id="table-1", title="Table 1: what an ACT is made of, AI coding", x="RL batch size",
        y="mean ACT, seconds", kind="bars", grid=_table, measure=act, claims=_table_claims,
    ),
)  # fmt: skip
