"""Figures of Heddle's results: 12 (overall), 14 (order), 15 (placement), 16 (degrees)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from benchmarks.fleets.cases import FIXED, FleetCase
from benchmarks.fleets.plans import (
    ASSUMED,
    BASELINE_DEGREES,
    BASELINES,
    FOLD,
    MODELS,
    PREDICTOR,
    WORKLOADS,
    Drawn,
    FleetContext,
    FleetPlan,
    FleetScale,
    between,
)
from simulator.figures import Claim, Interval, Series, interval

#: Systems of ours: the paper's mechanisms as printed, and ours.
PAPER: Final = "paper"
OURS: Final = "hedged"
STICKY: Final = "seconds+cache"
#: Policy → the whole system with it: the paper's degrees, our fold.
FULL: Final = {PAPER: PAPER, OURS: f"{OURS}, fold"}
#: What the paper prints as least and greatest speedup.
PRINTED: Final = {"Verl": ("1.4", "2.3"), "Verl*": ("1.1", "2.4"), "Slime": ("1.2", "2.5")}
ORDERS: Final = {"RR": "rr+cache", "FCFS": "fcfs+cache", "Autellix": "autellix+cache"}


def _systems(model: str, workload: str) -> dict[str, FleetCase]:
    """Return the systems of Figure 12."""
    base = FleetCase("", BASELINE_DEGREES[model], workload=workload, model=model)
    baselines = {name: replace(base, policy=policy) for name, policy in BASELINES.items()}
    return baselines | {
        PAPER: replace(base, policy=PAPER, degrees=(), predictor=PREDICTOR, preempts=True),
        OURS: replace(base, policy=OURS, predictor=PREDICTOR),
        f"{OURS}, fold": replace(base, policy=OURS, predictor=PREDICTOR, fold=FOLD, cuts=True),
    }


def _overall(context: FleetContext) -> Drawn:
    lines: dict[str, list[tuple[float | str, Interval]]] = {}
    speedups: dict[tuple[str, str], dict[str, Interval]] = {}
    for workload in WORKLOADS:
        for model in MODELS:
            place = f"{workload} {model}"
            systems = _of(context.scale, _systems(model, workload))
            for name, case in systems.items():
                lines.setdefault(name, []).append((place, context.compared.throughput(case)))
            for name in BASELINES:
                for policy, system in FULL.items():
                    found = context.compared.speedup(systems[system], systems[name])
                    speedups.setdefault((policy, name), {})[place] = found
    claims = [
        claim
        for (policy, name), found in speedups.items()
        for claim in between(f"throughput, {policy} over {name}", PRINTED[name], found)
    ]
    return _series(lines), tuple(claims)


def _order_systems(workload: str) -> dict[str, FleetCase]:
    base = FleetCase("", FIXED["Fix-8"], workload=workload)
    return {name: replace(base, policy=policy) for name, policy in ORDERS.items()} | {
        PAPER: replace(base, policy="tokens+cache", predictor=PREDICTOR, preempts=True),
        OURS: replace(base, policy=STICKY, predictor=PREDICTOR),
        f"{OURS}, oracle": replace(base, policy=STICKY, predictor="oracle"),
    }


def _order(context: FleetContext) -> Drawn:
    lines: dict[str, list[tuple[float | str, Interval]]] = {}
    claims = []
    for workload in WORKLOADS:
        systems = _of(context.scale, _order_systems(workload))
        for name, case in systems.items():
            results = [context.compared.results[each] for each in case.seeds(context.scale.seeds)]
            lines.setdefault(name, []).extend(
                (
                    (workload, context.compared.makespan(case)),
                    (
                        f"{workload}, queue of the longest",
                        interval(r.longest_queue for r in results),
                    ),
                )
            )
        for ours in (PAPER, OURS):
            found = {
                name: context.compared.speedup(systems[ours], systems[name]) for name in ORDERS
            }
            claims += between(f"rollout, {ours}, {workload}", ("1.1", "1.26"), found)
    return _series(lines), tuple(claims)


def _placement_systems(workload: str) -> dict[str, FleetCase]:
    base = FleetCase("", FIXED["Fix-1"], workload=workload)
    return {
        "least-load": replace(base, policy="rr+least"),
        "cache-aware": replace(base, policy="rr+cache"),
        PAPER: replace(base, policy=PAPER, predictor=PREDICTOR),
        OURS: replace(base, policy=OURS, predictor=PREDICTOR),
        f"{OURS}, oracle": replace(base, policy=OURS, predictor="oracle"),
    }


def _placement(context: FleetContext) -> Drawn:
    lines: dict[str, list[tuple[float | str, Interval]]] = {}
    claims = []
    for workload in WORKLOADS:
        systems = _of(context.scale, _placement_systems(workload))
        for name, case in systems.items():
            lines.setdefault(name, []).append((workload, context.compared.throughput(case)))
        for ours in (PAPER, OURS, f"{OURS}, oracle"):
            found = {
                name: context.compared.speedup(systems[ours], systems[name])
                for name in ("least-load", "cache-aware")
            }
            claims += between(f"throughput, {ours}, {workload}", ("1.2", "1.5"), found)
    return _series(lines), tuple(claims)


def _degree_systems(workload: str) -> dict[str, FleetCase]:
    base = FleetCase("rr+cache", FIXED["Fix-1"], workload=workload)
    return {
        "Fix-1": base,
        "Fix-8": replace(base, degrees=FIXED["Fix-8"]),
        PAPER: replace(base, policy=PAPER, degrees=(), predictor=PREDICTOR),
        f"{OURS}, fold": replace(base, policy=OURS, predictor=PREDICTOR, fold=FOLD, cuts=True),
    }


def _degrees(context: FleetContext) -> Drawn:
    lines: dict[str, list[tuple[float | str, Interval]]] = {}
    claims = []
    for workload in WORKLOADS:
        systems = _of(context.scale, _degree_systems(workload))
        for name, case in systems.items():
            lines.setdefault(name, []).append((workload, context.compared.throughput(case)))
        for policy, system in FULL.items():
            found = {
                name: context.compared.speedup(systems[system], systems[name])
                for name in ("Fix-1", "Fix-8")
            }
            claims += between(f"throughput, {policy}, {workload}", ("1.1", "1.3"), found)
    return _series(lines), tuple(claims)


def _active(context: FleetContext) -> Drawn:
    systems = _of(context.scale, _degree_systems("search"))
    first = {name: context.compared.results[case] for name, case in systems.items()}
    latest = max(result.makespan for result in first.values())
    series = tuple(
        Series(name, tuple(
            (round(latest * step / 40, 1), interval([float(result.active(latest * step / 40))]))
            for step in range(41)
        ))
        for name, result in first.items()
    )  # fmt: skip
    ended = {name: interval([result.makespan]) for name, result in first.items()}
    return series, tuple(Claim(f"end, {name}", None, at) for name, at in ended.items())


def _of(scale: FleetScale, systems: dict[str, FleetCase]) -> dict[str, FleetCase]:
    return {name: scale.of(case) for name, case in systems.items()}


def _series(lines: dict[str, list[tuple[float | str, Interval]]]) -> tuple[Series, ...]:
    return tuple(Series(name, tuple(points)) for name, points in lines.items())


def _all(scale: FleetScale, *systems: dict[str, FleetCase]) -> list[FleetCase]:
    return [
        case
        for each in systems
        for system in _of(scale, each).values()
        for case in system.seeds(scale.seeds)
    ]


PLANS: Final = (
    FleetPlan(
        id="heddle-12", title="Figure 12: rollout throughput", x="workload and model", y="tokens/s",
        kind="bars", draw=_overall,
        cases=lambda scale: _all(scale, *(_systems(m, w) for w in WORKLOADS for m in MODELS)),
        notes=ASSUMED + f" Predictor: {PREDICTOR}, modelled. `{PAPER}`: planned degrees, arrangement, moves and"
        " eviction as printed.",
    ),
    FleetPlan(
        id="heddle-14", title="Figure 14: orders on one worker of 8 GPUs, 14B", x="workload", y="seconds",
        kind="bars", draw=_order,
        cases=lambda scale: _all(scale, *(_order_systems(w) for w in WORKLOADS)),
        notes=ASSUMED + " All trajectories are on one worker, so that orders alone differ.",
    ),
    FleetPlan(
        id="heddle-15", title="Figure 15: placement on 8 equal workers, 14B", x="workload", y="tokens/s",
        kind="bars", draw=_placement,
        cases=lambda scale: _all(scale, *(_placement_systems(w) for w in WORKLOADS)),
    ),
    FleetPlan(
        id="heddle-16", title="Figure 16(a): degrees, 14B", x="workload", y="tokens/s", kind="bars",
        draw=_degrees,
        cases=lambda scale: _all(scale, *(_degree_systems(w) for w in WORKLOADS)),
    ),
    FleetPlan(
        id="heddle-16b", title="Figure 16(b): active trajectories of the search agent", x="seconds",
        y="trajectories", draw=_active, cases=lambda scale: _all(scale, _degree_systems("search")),
        notes=ASSUMED + " One seed.",
    ),
)  # fmt: skip
