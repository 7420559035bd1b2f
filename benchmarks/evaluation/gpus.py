"""Figures of services on GPUs: ARL-Tangram Figures 3(d), 6, 7 and 8(b), and Table 1, MOPD."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from benchmarks.evaluation.cases import Case, Scale
from benchmarks.evaluation.plans import Context, Grid, Measure, Plan, act, point, step
from benchmarks.evaluation.search import effective_step, swing
from simulator.figures import OURS, Claim, Interval, interval
from simulator.result import Result
from simulator.workloads.mopd import GPUS

SYSTEMS: Final = ("sglang(4)", "serverlessllm", "minimum", "fixed(4)", *OURS)
#: ARL-Tangram §6.1 and Table 1.
BATCH, LARGE_BATCH = 2048, 3072
#: Figure 8(b) left: up to 2,048 trajectories.
BATCHES: Final = (256, 512, 1024, 1536, 2048)
#: Figure 8(b) right: ten services, batch 1,024; their fixed places need 40 GPUs.
RIGHT_BATCH, RIGHT_SERVICES = 1024, 10
FEWER: Final = (8, 12, 16, 20, 24, 32, 40)


def reward_act(result: Result) -> float:
    """Return the mean ACT of calls of services."""
    return result.rewards.act.mean if result.rewards else 0.0


def _failed(result: Result) -> float:
    total = sum(result.outcomes.values())
    return 1 - result.outcomes.get("completed", 0) / total


def _mopd(scale: Scale) -> Grid:
    return {system: [("all", scale.case(system, BATCH, workload="mopd"))] for system in SYSTEMS}


def _both(scale: Scale) -> Grid:
    return {
        system: [("all", scale.case(system, BATCH, workload="mopd-search"))] for system in SYSTEMS
    }


def _judge(scale: Scale) -> Grid:
    return {
        system: [("all", scale.case(system, BATCH, workload="judged-search"))]
        for system in ("sglang(8)", "serverlessllm", "fixed(4)", *OURS)
    }


def _over(
    context: Context, grid: Grid, rival: str, x: float | str, printed: dict[str, str | None],
    measures: Mapping[str, Measure],
) -> list[Claim]:  # fmt: skip
    """Claim how many times a rival's measure is ours, for each of our policies."""
    return [
        Claim(
            f"{name}, {rival} over {policy}",
            printed.get(name) if policy == "paper" else None,
            context.ratio(point(grid, rival, x), point(grid, policy, x), measure),
            better="higher",
        )
        for name, measure in measures.items()
        for policy in OURS
    ]


def _failures(context: Context, grid: Grid, x: float | str, paper: str | None) -> Claim:
    cases = point(grid, "serverlessllm", x)
    what = f"share of calls that serverlessllm fails, {x}" if x != "all" else "share that fails"
    return Claim(what, paper, context.measured(cases, _failed), "given up after 600 s")


def _mopd_claims(context: Context, grid: Grid) -> list[Claim]:
    measures = {"ACT of a reward": reward_act, "RL step": step}
    said: dict[str, str | None] = {"RL step": "small; no number"}
    return _over(context, grid, "sglang(4)", "all", said, measures)


def _both_claims(context: Context, grid: Grid) -> list[Claim]:
    measures = {
        "ACT of a reward": reward_act,
        "RL step with ineffective trajectories done again": effective_step,
    }
    said: dict[str, str | None] = {"ACT of a reward": "substantial; no number"}
    return _over(context, grid, "sglang(4)", "all", said, measures)


def _judge_claims(context: Context, grid: Grid) -> list[Claim]:
    return [
        Claim(
            f"ACT of a judgement, {policy} over sglang(8)",
            "slightly above 1" if policy == "paper" else None,
            context.ratio(point(grid, policy, "all"), point(grid, "sglang(8)", "all"), reward_act),
        )
        for policy in OURS
    ]


def _left(scale: Scale) -> Grid:
    return {
        system: [(batch, scale.case(system, batch, workload="mopd")) for batch in BATCHES]
        for system in SYSTEMS
    }


def _left_claims(context: Context, grid: Grid) -> list[Claim]:
    claims = [
        claim
        for rival, x, paper in (
            ("sglang(4)", 2048, "18.1"),
            ("sglang(4)", 1024, "3.4"),
            ("serverlessllm", 1024, "101.8"),
        )
        for claim in _over(
            context, grid, rival, x, {f"ACT at batch {x}": paper}, {f"ACT at batch {x}": act}
        )
    ]
    few = context.ratio(point(grid, "sglang(4)", 256), point(grid, "paper", 256), act)
    claims.append(
        Claim("ACT at batch 256, sglang(4) over paper", "slightly below 1", few, "restores")
    )
    return [*claims, _failures(context, grid, 2048, "too many to serve")]


def _right(scale: Scale) -> Grid:
    def cases(system: str, gpus: int) -> list[Case]:
        return scale.case(system, RIGHT_BATCH, workload="mopd", gpus=gpus, teachers=RIGHT_SERVICES)

    fixed: Grid = {"sglang(4)": [(GPUS, cases("sglang(4)", GPUS))]}
    others = ("serverlessllm", "minimum", "fixed(4)", *OURS)
    return fixed | {name: [(gpus, cases(name, gpus)) for gpus in FEWER] for name in others}


def fewest(
    context: Context, line: Sequence[tuple[float | str, list[Case]]], wished: Sequence[float],
    measure: Measure,
) -> Interval | None:  # fmt: skip
    """Return the smallest x from which on a line stays within each seed's wish; None: nowhere."""
    found = []
    for seed, wish in enumerate(wished):
        enough = None
        for x, cases in reversed(line):
            if measure(context.results[cases[seed]]) > wish:
                break
            enough = x
        if not isinstance(enough, int | float):
            return None
        found.append(float(enough))
    return interval(found)


def _right_claims(context: Context, grid: Grid) -> list[Claim]:
    wished = [act(context.results[case]) for case in point(grid, "sglang(4)", GPUS)]
    claims = []
    for policy in ("serverlessllm", "minimum", "fixed(4)", *OURS):
        need = fewest(context, grid[policy], wished, act)
        what = f"share of {GPUS} GPUs for the ACT of sglang(4) on all, {policy}"
        paper = "0.29" if policy == "paper" else None
        if need is None:
            note = f"not reached with {GPUS} GPUs: counted as more than all"
            claims.append(Claim(what, paper, Interval(1.0, 1.0, 1.0), note))
        else:
            share = Interval(need.mean / GPUS, need.low / GPUS, need.high / GPUS)
            note = f"of {', '.join(map(str, FEWER))} GPUs"
            claims.append(Claim(what, paper, share, note, better="lower"))
    return claims


def _table(scale: Scale) -> Grid:
    return {
        policy: [(batch, scale.case(policy, batch, workload="mopd"))
                 for batch in (BATCH, LARGE_BATCH)]
        for policy in OURS
    }  # fmt: skip


def _table_claims(context: Context, grid: Grid) -> list[Claim]:
    printed = {
        BATCH: {"execution": "0.621", "queue": "0.081", "overhead": "0.201"},
        LARGE_BATCH: {"execution": "0.705", "queue": "15.05", "overhead": "0.240"},
    }
    claims = []
    for policy in OURS:
        said = policy == "paper"
        for batch, parts in printed.items():
            for name, paper in parts.items():

                def part(result: Result, name: str = name) -> float:
                    return float(getattr(result.whole, name).mean)

                ours = context.measured(point(grid, policy, batch), part)
                what = f"mean {name} at batch {batch}, {policy}, s"
                claims.append(Claim(what, paper if said else None, ours))
            share = context.measured(point(grid, policy, batch), overhead_share)
            what = f"overhead over execution at batch {batch}, {policy}"
            note = "an input: the simulator adds measured overheads"
            claims.append(Claim(what, "about 0.25" if said else None, share, note, "lower", is_input=True))  # fmt: skip
    return claims


def overhead_share(result: Result) -> float:
    """Return mean overhead over mean execution."""
    return result.whole.overhead.mean / result.whole.execution.mean


def _swing_claims(context: Context, grid: Grid) -> list[Claim]:
    ours = context.measured(point(grid, "minimum", "all"), swing)
    what = "invocations in the busiest of 40 stretches over the calmest"
    return [Claim(what, "up to 1,000", ours, "of one step; the paper's spans steps")]


PLANS: Final = (
    Plan(
        id="3d-mopd", title="Figure 3(d), MOPD: invocations over time", x="system",
        y="busiest over calmest", kind="bars", grid=_mopd, measure=swing, claims=_swing_claims,
    ),
    Plan(
        id="6-mopd", title="Figures 6 and 7, MOPD: ACT of a reward", x="system", y="seconds",
        kind="bars", grid=_mopd, measure=reward_act, claims=_mopd_claims, log_y=True,
        notes="Nine teachers on 40 GPUs; sglang(4) gives each four for good.",
    ),
    Plan(
        id="7-both", title="Figure 7, MOPD+Search: ACT of a reward", x="system", y="seconds",
        kind="bars", grid=_both, measure=reward_act, claims=_both_claims, log_y=True,
        notes="Nine teachers and a judge on 40 GPUs. Calls of APIs that a baseline loses end their "
        "trajectory before it is judged, so baselines have fewer judgements to make.",
    ),
    Plan(
        id="7-judge", title="Figure 7, DeepSearch: ACT of a judgement", x="system", y="seconds",
        kind="bars", grid=_judge, measure=reward_act, claims=_judge_claims,
        notes="One service on 40 GPUs; sglang(8) has five replicas of it.",
    ),
    Plan(
        id="8b-left", title="Figure 8(b) left: batch size on 40 GPUs, MOPD", x="RL batch size",
        y="ACT, seconds", grid=_left, measure=act, claims=_left_claims, log_y=True,
    ),
    Plan(
        id="8b-right", title="Figure 8(b) right: GPUs for ten services at batch 1,024", x="GPUs",
        y="ACT, seconds", grid=_right, measure=act, claims=_right_claims, log_y=True,
        notes="With fewer GPUs, fixed places would refuse the calls of some services.",
    ),
    Plan(
        id="table-1-mopd", title="Table 1: what an ACT is made of, MOPD", x="RL batch size",
        y="mean ACT, seconds", kind="bars", grid=_table, measure=act, claims=_table_claims,
    ),
)  # fmt: skip
