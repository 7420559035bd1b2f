"""Figures of Heddle's motivation: 2 and 5 (lengths), 4 (completion times), 6 (interference), 7 (degrees)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

from benchmarks.fleets.cases import FIXED, FleetCase, batch_of
from benchmarks.fleets.plans import (
    MODELS,
    WORKLOADS,
    Drawn,
    FleetContext,
    FleetPlan,
    FleetScale,
)
from managers.llm.fake.engine_spec import MODELLED
from simulator.figures import Claim, Interval, Series, interval
from simulator.workloads.trajectories import AgentTrajectory

CODING: Final = FleetCase("rr+cache")
_SHARES: Final = (0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 100)
#: Groups of Figure 5 that are shown, and context of Figures 6 and 7.
_GROUPS: Final = 24
_CONTEXT: Final = 8_000.0


def _batches(context: FleetContext) -> list[list[AgentTrajectory]]:
    case = context.scale.of(CODING)
    return [batch_of(case, context.recordings, seed) for seed in range(context.scale.seeds)]


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share / 100 * (len(ordered) - 1)))]


def _lengths(context: FleetContext) -> Drawn:
    batches = _batches(context)
    measures = {
        "tokens": [[float(each.tokens) for each in batch] for batch in batches],
        "tool seconds": [[each.tool_seconds for each in batch] for batch in batches],
    }
    series = tuple(
        Series(name, tuple(
            (share, interval(_quantile(values, share) / max(values) for values in found))
            for share in _SHARES
        ))
        for name, found in measures.items()
    )  # fmt: skip
    claims = tuple(
        Claim(
            f"longest over median, {name}", None,
            interval(max(values) / max(median(values), 1e-9) for values in found),
            "the paper draws both as highly skewed",
        )
        for name, found in measures.items()
    )  # fmt: skip
    return series, claims


def _completion_cases(scale: FleetScale) -> list[FleetCase]:
    cases = [scale.of(FleetCase("rr+cache", workload=name)) for name in WORKLOADS]
    return [each for case in cases for each in case.seeds(scale.seeds)]


def _completion(context: FleetContext) -> Drawn:
    series, claims = [], []
    for name in WORKLOADS:
        cases = context.scale.of(FleetCase("rr+cache", workload=name)).seeds(context.scale.seeds)
        ends = [sorted(context.compared.results[case].ends) for case in cases]
        points = tuple(
            (share, interval(_quantile(each, share) / each[-1] for each in ends))
            for share in _SHARES
        )
        series.append(Series(name, points))
        tail = interval(each[-1] / median(each) for each in ends)
        claims.append(Claim(f"latest end over median, {name}", "over 4", tail, better="higher"))
    return tuple(series), tuple(claims)


def _groups(context: FleetContext) -> Drawn:
    groups: dict[str, list[int]] = {}
    for each in _batches(context)[0]:
        groups.setdefault(each.group, []).append(each.tokens)
    shown = sorted(groups.values(), key=median)[:: max(1, len(groups) // _GROUPS)]
    lines: dict[str, Callable[[list[int]], float]] = {
        "longest": max, "median": median, "shortest": min,
    }  # fmt: skip
    series = tuple(
        Series(name, tuple((index, interval([float(of(group))])) for index, group in enumerate(shown)))
        for name, of in lines.items()
    )  # fmt: skip
    spread = interval(max(group) / max(1, min(group)) for group in groups.values())
    claim = Claim(
        "longest over shortest of a prompt", None, spread, "half of a group is assumed alike"
    )
    return series, (claim,)


def _interference(context: FleetContext) -> Drawn:
    batches = (1, 2, 4, 8, 16, 32, 64, 100, 128)

    def times(name: str) -> list[tuple[float, Interval]]:
        spec = MODELLED[name]
        alone = spec.token_seconds(1, 1, _CONTEXT)
        return [(n, interval([spec.token_seconds(1, n, _CONTEXT) / alone])) for n in batches]

    return tuple(Series(name, tuple(times(name))) for name in MODELS), ()


def _degrees(context: FleetContext) -> Drawn:
    spec = MODELLED["14B"]
    tokens, rates = [], []
    for name, degrees in FIXED.items():
        degree = degrees[0]
        shape = f"{len(degrees)}×{degree} ({name})"
        tokens.append((shape, interval([1e3 * spec.token_seconds(degree, 1, _CONTEXT)])))
        busy = 100 / spec.token_seconds(degree, 100, 0.05 * _CONTEXT)
        rates.append((shape, interval([len(degrees) * busy / 1e3])))
    series = (
        Series("ms of a token, alone", tuple(tokens)),
        Series("1,000 tokens/s, 100 each", tuple(rates)),
    )
    fastest = interval([tokens[0][1].mean / tokens[-1][1].mean])
    return series, (Claim("token time of Fix-1 over Fix-8", None, fastest),)


PLANS: Final = (
    FleetPlan(
        id="heddle-2", title="Figure 2: long tails of coding agents", x="percentile",
        y="share of the longest", draw=_lengths,
        notes="Lengths that the simulations have: think seconds of the trace × 25 tokens/s.",
    ),
    FleetPlan(
        id="heddle-4", title="Figure 4: completion times of trajectories, round robin and cache-aware",
        x="percentile", y="share of the latest", cases=_completion_cases, draw=_completion,
    ),
    FleetPlan(
        id="heddle-5", title="Figure 5: lengths of trajectories of one prompt", x="prompt, by median",
        y="tokens", draw=_groups,
        notes="One seed. Half of a group follows one recording, the other half any: assumed.",
    ),
    FleetPlan(
        id="heddle-6", title="Figure 6: token time by batch size, one GPU", x="batch",
        y="times that of one sequence", draw=_interference,
        notes="The modelled engine with caches of 8,000 tokens each, all of their bytes.",
    ),
    FleetPlan(
        id="heddle-7", title="Figure 7: 8 GPUs as workers of different degrees, 14B", x="workers × GPUs",
        y="ms; 1,000 tokens/s", kind="bars", draw=_degrees, notes="The modelled engine.",
    ),
)  # fmt: skip
