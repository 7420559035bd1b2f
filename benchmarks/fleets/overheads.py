"""Figure 13 of Heddle (precision of predictions), and its Tables 1 and 2 (overheads)."""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean, median
from time import perf_counter
from typing import Final

import numpy as np

from benchmarks.fleets.cases import FleetCase, batch_of
from benchmarks.fleets.plans import MODELS, PREDICTOR, WORKLOADS, Drawn, FleetContext, FleetPlan
from managers.llm.fake.engine_spec import MODELLED
from placement.arrange import arrange, size_table, size_tables
from placement.degrees import plan_degrees
from placement.facts import DEGREES, WorkerFacts
from simulator.figures import Claim, Interval, Series, interval
from simulator.fleets.modelled_predictors import ModelledPredictor
from simulator.workloads.trajectories import AgentTrajectory

#: Of the longest trajectories, those whose recall is reported.
_LONG: Final = 0.1
#: Table 1: seconds of a tool and of a migration, by model and workload.
_TOOLS: Final = {"coding": "0.41", "search": "1.41", "math": "0.046"}
_MIGRATIONS: Final = {"coding": "0.27", "search": "0.15", "math": "0.25"}
#: Table 2 for 14B: seconds of a placement and of the resource manager.
_PLACEMENT, _MANAGER = "0.038", "5.05"
_TRIES: Final = 5


def _precision(context: FleetContext) -> Drawn:
    lines: dict[str, list[tuple[float | str, Interval]]] = {}
    for workload in WORKLOADS:
        case = context.scale.of(FleetCase("", workload=workload))
        batches = [batch_of(case, context.recordings, seed) for seed in range(context.scale.seeds)]
        for name in ("trace", PREDICTOR):
            for turns in (0, 1, 2):
                found = [_measured(batch, name, turns) for batch in batches]
                for column, what in enumerate(("Pearson", "recall")):
                    values = interval(each[column] for each in found)
                    line = lines.setdefault(f"{name}, after {turns}", [])
                    line.append((f"{workload}, {what}", values))
    return tuple(Series(name, tuple(points)) for name, points in lines.items()), ()


def _measured(batch: list[AgentTrajectory], name: str, turns: int) -> tuple[float, float]:
    """Return Pearson's correlation of the logarithms, and the recall of the longest tenth."""
    alive = [each for each in batch if len(each.turns) > turns]
    predictor = ModelledPredictor(name, batch)
    said = np.array([predictor.prediction(each.key, turns).tokens for each in alive])
    true = np.array([float(sum(t.tokens for t in each.turns[turns:])) for each in alive])
    long = max(1, round(_LONG * len(alive)))
    hits = len(set(np.argsort(said)[-long:].tolist()) & set(np.argsort(true)[-long:].tolist()))
    return float(np.corrcoef(np.log(said), np.log(true))[0, 1]), hits / long


def _seconds_of(work: Callable[[], object]) -> Interval:
    found = []
    for _ in range(_TRIES):
        began = perf_counter()
        work()
        found.append(perf_counter() - began)
    return interval([median(found)])


def _data_plane(context: FleetContext) -> Drawn:
    lines: dict[str, list[tuple[float | str, Interval]]] = {
        "tool": [],
        "prediction": [],
        "move": [],
    }
    claims = []
    for workload in WORKLOADS:
        batch = batch_of(context.scale.of(FleetCase("", workload=workload)), context.recordings, 0)
        tools = [turn.tool_seconds for each in batch for turn in each.turns[:-1]]
        predictor = ModelledPredictor(PREDICTOR, batch)
        key = batch[0].key
        said = _seconds_of(lambda: predictor.prediction(key, 0))  # noqa: B023 - called at once
        tokens = round(mean(each.prompt_tokens + each.tokens / 2 for each in batch))
        moved = interval([MODELLED["14B"].transfer_seconds(tokens)])
        lines["tool"].append((workload, interval([mean(tools)])))
        lines["prediction"].append((workload, said))
        lines["move"].append((workload, moved))
        claims += [
            Claim(f"seconds of a tool, {workload}, 14B", _TOOLS[workload], interval([mean(tools)]),
                  "of the trace" if workload == "coding" else "declared after the table"),
            Claim(f"seconds of a move, {workload}, 14B", _MIGRATIONS[workload], moved,
                  f"a cache of {tokens:,} tokens at 30 GB/s", "lower"),
        ]  # fmt: skip
    return tuple(Series(name, tuple(points)) for name, points in lines.items()), tuple(claims)


def _control_plane(context: FleetContext) -> Drawn:
    rng = np.random.default_rng(0)
    count = 64 * context.scale.per_gpu
    lengths = np.exp(rng.normal(8.5, 0.9, count)).tolist()
    lines: dict[str, list[tuple[float | str, Interval]]] = {"placement": [], "resource manager": []}
    claims = []
    for model in MODELS:
        spec = MODELLED[model]
        workers = [WorkerFacts(number, 400, 4) for number in range(16)]
        tables = size_tables(spec, workers, len(lengths), 8_000.0)
        by_degree = {d: size_table(spec, d, 100 * d, len(lengths), 8_000.0) for d in DEGREES}
        found = {
            "placement": _seconds_of(lambda: arrange(lengths, tables)),  # noqa: B023
            "resource manager": _seconds_of(
                lambda: plan_degrees(lengths, 64, by_degree, np.random.default_rng(0))  # noqa: B023
            ),
        }
        for name, seconds in found.items():
            lines[name].append((model, seconds))
            printed = _PLACEMENT if name == "placement" else _MANAGER
            claims.append(Claim(f"seconds of {name}, {model}", printed, seconds, "", "lower"))
    return tuple(Series(name, tuple(points)) for name, points in lines.items()), tuple(claims)


PLANS: Final = (
    FleetPlan(
        id="heddle-13", title="Figure 13: precision of predictions", x="workload", y="Pearson (log); recall",
        kind="bars", draw=_precision,
        notes="Of the modelled predictors that the other figures use, by what they declare; `trace` has the correlations of"
        " trained ones on the shared trace. Trained predictors beside history: python -m benchmarks.placement.",
    ),
    FleetPlan(
        id="heddle-t1", title="Table 1: overheads of the data plane, 14B", x="workload", y="seconds",
        kind="table", draw=_data_plane,
        notes="Tools: as simulated. Prediction: of the modelled predictor, measured here. Moves: by the modelled transfer.",
    ),
    FleetPlan(
        id="heddle-t2", title="Table 2: overheads of the control plane", x="model", y="seconds",
        kind="table", draw=_control_plane,
        notes="Measured on this machine, not simulated: 100 trajectories of a GPU on 16 workers with the sort, and degrees for 64 GPUs.",
    ),
)  # fmt: skip
