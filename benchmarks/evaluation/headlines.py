"""Headlines of ARL-Tangram, each on the recorded workload and on the calibrated one, beside the printed number.

`ai-coding(mix-from-ratios)` is a third column of its own: the share of its rewards follows from 4.3, 9.0 and 2.8,
so these three have no verdict there. Ratios are those of Tangram's policy ``paper``, and of ``malleable`` beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from benchmarks.evaluation import coding, gpus, search
from benchmarks.evaluation.cases import Case, Scale
from benchmarks.evaluation.plans import (
    Context,
    Grid,
    Measure,
    Plan,
    act,
    point,
    step,
    trajectory_act,
)
from simulator.figures import Claim, Interval, Series
from simulator.result import Result, Spread
from simulator.workloads.mopd import GPUS

#: Policies that headlines are about; the paper's numbers are of the first one.
POLICIES: Final = ("paper", "malleable")
#: Column → what is added to the name of the recorded workload.
COLUMNS: Final = {
    "recorded": "",
    "calibrated": "(calibrated)",
    "mix from ratios": "(mix-from-ratios)",
}
#: ARL-Tangram §6.2: the average of ten steps.
RL_STEPS: Final = 10


@dataclass(frozen=True)
class Headline:
    """One number that the paper prints: how many times a rival's measure is Tangram's.

    Without a rival the number is Tangram's own measure.
    """

    what: str
    paper: str
    workload: str
    batch: int
    measure: Measure
    rival: str = ""
    fields: tuple[tuple[str, Any], ...] = ()
    #: The share of rewards of the mix was made from it.
    put_into_mix: bool = False
    #: What the simulator takes as an input.
    is_input: bool = False
    #: The paper averages it over ten RL steps, or ten are cheap: so many as the scale has for these.
    averaged: bool = False

    def columns(self, scale: Scale) -> tuple[str, ...]:
        """Return the workloads that it is simulated on."""
        mixed = scale.mixed and self.workload == "ai-coding" and not self.is_input
        return tuple(COLUMNS) if mixed else tuple(COLUMNS)[:2]

    @property
    def better(self) -> str:
        """Which way is better than the paper."""
        return "higher" if self.rival else "lower"

    def cases(self, scale: Scale, column: str, system: str) -> list[Case]:
        """Return the cases of one system, one for each seed."""
        workload = self.workload + COLUMNS[column]
        fields = dict(self.fields) | {"rl_steps": self.steps(scale)}
        return scale.case(system, self.batch, workload=workload, **fields)

    def steps(self, scale: Scale) -> int:
        """Return how many RL steps it is the mean of."""
        steps: int = dict(self.fields).get("rl_steps", scale.headline_steps if self.averaged else 1)
        return steps

    def line(self, scale: Scale, column: str) -> str:
        """Return the name of its line of a grid: headlines of the same cases share one."""
        return f"{self.what}, steps: {self.steps(scale)} · {column}"

    def grid(self, scale: Scale) -> Grid:
        """Return its cases by column."""
        systems = (*POLICIES, self.rival) if self.rival else POLICIES
        return {
            self.line(scale, column): [
                (system, self.cases(scale, column, system)) for system in systems
            ]
            for column in self.columns(scale)
        }

    def value(self, context: Context, grid: Grid, column: str, policy: str) -> Interval:
        """Return the number under ``policy``, over seeds."""
        line = self.line(context.scale, column)
        ours = point(grid, line, policy)
        if not self.rival:
            return context.measured(ours, self.measure)
        return context.ratio(point(grid, line, self.rival), ours, self.measure)

    def claim(self, context: Context, grid: Grid, column: str, policy: str) -> Claim:
        """Return the number beside the printed one."""
        mixed = column == "mix from ratios" and self.put_into_mix
        note = "results were put in" if mixed else ""
        over = f", {self.rival} over {policy}" if self.rival else f", {policy}"
        return Claim(
            f"{column}: {self.what}{over}",
            self.paper if policy == POLICIES[0] else None,
            self.value(context, grid, column, policy),
            note,
            self.better,
            is_input=self.is_input or mixed,
        )


_PODS, _TIMEOUTS = "kubernetes(110)", "kubernetes(timeouts)"
_coding = partial(Headline, workload="ai-coding", batch=coding.BATCH, rival=_PODS)
_mopd = partial(Headline, workload="mopd", measure=act, averaged=True)

CODING: Final = (
    _coding("ACT at batch 1,280", "4.3", measure=trajectory_act, put_into_mix=True, averaged=True),
    _coding("interactions at batch 1,280", "9.0", measure=coding.interaction_act, put_into_mix=True,
            averaged=True),
    _coding("rewards at batch 1,280", "2.8", measure=gpus.reward_act, put_into_mix=True,
            averaged=True),
    _coding("ACT at batch 128", "3.1", batch=128, measure=trajectory_act),
    _coding("ACT at batch 1,536", "27.7", batch=1536, rival=_TIMEOUTS, measure=trajectory_act),
    _coding("ACT on 768 cores", "1.89", measure=trajectory_act, fields=(("nodes", 3),)),
    _coding("RL step, ten steps", "1.4", measure=step, fields=(("rl_steps", RL_STEPS),)),
    _coding("ACT at batch 256", "2.0", batch=256, rival="fixed(4)", measure=trajectory_act),
    _coding("ACT at batch 1,280", "3.0", rival="fixed(16)", measure=trajectory_act),
    _coding("ACT on 1x cores, taken as 1,280", "1.8", rival="fixed(4)", measure=trajectory_act),
    _coding("overhead over execution", "below 0.03", rival="", measure=gpus.overhead_share,
            is_input=True),
)  # fmt: skip
MOPD: Final = (
    _mopd("ACT at batch 2,048", "18.1", batch=2048, rival="sglang(4)"),
    _mopd("ACT at batch 1,024", "3.4", batch=1024, rival="sglang(4)"),
    _mopd("ACT at batch 1,024", "101.8", batch=1024, rival="serverlessllm"),
    _mopd("RL step, ten steps", "small; no number", batch=2048, rival="sglang(4)", measure=step,
          fields=(("rl_steps", RL_STEPS),)),
    _mopd("overhead over execution at batch 2,048", "about 0.25", batch=2048,
          measure=gpus.overhead_share, is_input=True),
)  # fmt: skip
SEARCH: Final = tuple(
    Headline(what, "1.5", "deep-search", search.BATCH, measure, "unmanaged", (("rl_steps", RL_STEPS),))
    for what, measure in (
        ("RL step, ten steps", step),
        ("RL step, ten steps, ineffective trajectories done again", search.effective_step),
    )
)  # fmt: skip


def _grid(headlines: Sequence[Headline], scale: Scale) -> Grid:
    # Rivals of one name share a line, so that two headlines of one title have both.
    grid: Grid = {}
    for headline in headlines:
        for name, line in headline.grid(scale).items():
            known = grid.setdefault(name, [])
            known += [each for each in line if each[0] not in {x for x, _ in known}]
    return grid


def _claims(headlines: Sequence[Headline], context: Context, grid: Grid) -> list[Claim]:
    return [
        headline.claim(context, grid, column, policy)
        for headline in headlines
        for column in headline.columns(context.scale)
        for policy in POLICIES
    ]


def _drawn(headlines: Sequence[Headline], context: Context, grid: Grid) -> tuple[Series, ...]:
    """Return the table: a line for each column, the paper's policy alone."""
    return tuple(
        Series(
            column,
            tuple(
                (_title(each), each.value(context, grid, column, POLICIES[0]))
                for each in headlines
                if column in each.columns(context.scale)
            ),
        )
        for column in COLUMNS
        if any(column in each.columns(context.scale) for each in headlines)
    )


def _title(headline: Headline) -> str:
    rival = f", {headline.rival}" if headline.rival else ""
    return f"{headline.what}{rival} ({headline.paper})"


def _plan(name: str, title: str, headlines: Sequence[Headline]) -> Plan:
    return Plan(
        id=f"headlines-{name}", title=f"Headlines, {title}: recorded and calibrated",
        x="headline (printed)", y="times ours, under paper", kind="table",
        grid=partial(_grid, headlines), measure=act, claims=partial(_claims, headlines),
        drawn=partial(_drawn, headlines),
        notes="Calibrated workloads: docs/simulator.md. Rows without a rival are Tangram's own.",
    )  # fmt: skip


#: ARL-Tangram Figure 8(b) right: the fewest GPUs for the ACT that fixed places have on all of them.
def _share_grid(scale: Scale) -> Grid:
    grid: Grid = {}
    for column in ("recorded", "calibrated"):
        fields = {"workload": "mopd" + COLUMNS[column], "teachers": gpus.RIGHT_SERVICES}
        fixed = scale.case("sglang(4)", gpus.RIGHT_BATCH, gpus=GPUS, **fields)
        grid[f"{column}: sglang(4)"] = [(GPUS, fixed)]
        for policy in POLICIES:
            grid[f"{column}: {policy}"] = [
                (count, scale.case(policy, gpus.RIGHT_BATCH, gpus=count, **fields))
                for count in gpus.FEWER
            ]
    return grid


def _share_claims(context: Context, grid: Grid) -> list[Claim]:
    claims = []
    for column in ("recorded", "calibrated"):
        fixed = point(grid, f"{column}: sglang(4)", GPUS)
        wished = [act(context.results[case]) for case in fixed]
        for policy in POLICIES:
            need = gpus.fewest(context, grid[f"{column}: {policy}"], wished, act)
            share = need or Interval(GPUS, GPUS, GPUS)
            claims.append(
                Claim(
                    f"{column}: share of {GPUS} GPUs for the ACT of sglang(4), {policy}",
                    "0.29" if policy == POLICIES[0] else None,
                    Interval(share.mean / GPUS, share.low / GPUS, share.high / GPUS),
                    "" if need else "not reached with all of them",
                    "lower",
                )
            )
    return claims


#: Workload and rival → ten RL steps, in which rollouts get longer.
STEPS: Final = (
    ("ai-coding(calibrated)", coding.BATCH, "kubernetes(110)"),
    ("mopd(calibrated)", gpus.BATCH, "sglang(4)"),
    ("deep-search(calibrated)", search.BATCH, "unmanaged"),
)


def _steps_grid(workload: str, batch: int, rival: str, scale: Scale) -> Grid:
    return {
        system: [("ten", scale.case(system, batch, workload=workload, rl_steps=RL_STEPS))]
        for system in (POLICIES[0], rival)
    }


def _steps_drawn(context: Context, grid: Grid) -> tuple[Series, ...]:
    """Return p50 and p95 of the time of a trajectory, by RL step."""

    def at(cases: Sequence[Case], number: int, name: str) -> Interval:
        return context.measured(cases, lambda result: float(getattr(_times(result)[number], name)))

    return tuple(
        Series(
            f"{system} {name}",
            tuple((number + 1, at(line[0][1], number, name)) for number in range(RL_STEPS)),
        )
        for system, line in grid.items()
        for name in ("p50", "p95")
    )


def _times(result: Result) -> tuple[Spread, ...]:
    return result.step_trajectory_seconds


def _steps_plan(workload: str, batch: int, rival: str) -> Plan:
    return Plan(
        id=f"steps-{workload.partition('(')[0]}", title=f"Time of a trajectory by RL step, {workload}",
        x="RL step", y="seconds", grid=partial(_steps_grid, workload, batch, rival), measure=step,
        drawn=_steps_drawn, log_y=True,
        notes=f"Batch {batch:,}. Thinking and rollouts get longer with each step, by a growth that is "
        "not printed (docs/simulator.md).",
    )  # fmt: skip


PLANS: Final = (
    _plan("coding", "AI coding", CODING),
    _plan("mopd", "MOPD", MOPD),
    _plan("search", "DeepSearch", SEARCH),
    Plan(
        id="headlines-gpus", title="Headlines, GPUs for ten services: recorded and calibrated",
        x="GPUs", y="mean ACT, seconds", grid=_share_grid, measure=act, claims=_share_claims,
        log_y=True,
    ),
    *(_steps_plan(*each) for each in STEPS),
)  # fmt: skip
