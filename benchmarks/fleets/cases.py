"""Cases: simulated rollouts of fleets, as values. Equal cases are simulated once.

Everything is simulated: engines, tools, lengths and predictors are modelled as `managers.llm.fake.engine_spec`,
`simulator.workloads.trajectories` and `simulator.fleets.modelled_predictors` declare; placement decides as in production.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass, fields, replace
from statistics import mean
from typing import Final

import numpy as np
from msgspec import structs

from managers.llm.fake.engine_spec import MODELLED, EngineSpec
from placement.arrange import size_table
from placement.degrees import plan_degrees
from placement.facts import DEGREES
from simulator.figures import Interval, interval
from simulator.fleets.rollout import roll_out
from simulator.fleets.setting import FleetResult, FleetSetting, FoldRule
from simulator.worker_processes import worker_processes
from simulator.workloads.trajectories import (
    DECLARED,
    AgentTrajectory,
    DeclaredAgents,
    RecordedAgents,
)
from tangram_client.traces.recording import Recording

#: GPUs of a fleet in these benchmarks; the paper's testbed has 64.
GPUS: Final = 8
#: Seeds of former batches: far from those of cases.
_FORMER: Final = 1_000
FIXED: Final = {f"Fix-{degree}": (degree,) * (GPUS // degree) for degree in (1, 2, 4, 8)}
#: Rivals: every order with every router.
ORDERS: Final = ("rr", "fcfs", "autellix")
ROUTERS: Final = ("least", "cache", "hybrid")


@dataclass(frozen=True)
class FleetCase:
    """One batch on one fleet."""

    policy: str
    #: Empty: planned from the lengths of the former batch (Heddle §6).
    degrees: tuple[int, ...] = FIXED["Fix-1"]
    predictor: str = ""
    seed: int = 0
    workload: str = "coding"
    #: Trajectories of a GPU, and slots of a worker (Heddle §7.1: 100).
    per_gpu: int = 100
    slots: int = 100
    model: str = "14B"
    #: Bytes of caches: 0.05 of the model's never bind, all of them do.
    cache_share: float = 0.05
    tensor_exponent: float = 0.6
    token_rate: float = 25.0
    heavy_tools: bool = False
    tool_ratio: float = 1.0
    preempts: bool = False
    buckets: bool = False
    #: Part of the batch at which narrow workers fold into one of degree 8; 0: never.
    fold: float = 0.0
    #: Folds cut the generations that run, instead of letting them end.
    cuts: bool = False

    @property
    def spec(self) -> EngineSpec:
        """The engine."""
        spec = MODELLED[self.model].with_cache(self.cache_share)
        return structs.replace(spec, tensor_exponent=self.tensor_exponent)

    @property
    def setting(self) -> FleetSetting:
        """The fleet."""
        return FleetSetting(
            self.policy, self.degrees, self.predictor, self.slots, self.spec,
            preempts=self.preempts, buckets=self.buckets, seed=self.seed,
            fold=FoldRule(self.fold, cuts=self.cuts) if self.fold else None,
        )  # fmt: skip

    @property
    def label(self) -> str:
        """What differs from the default case, seeds aside."""
        others = [each for each in fields(self) if each.name not in ("policy", "seed")]
        said = {each.name: getattr(self, each.name) for each in others}
        changed = [
            f"{each.name}={said[each.name]}" for each in others if said[each.name] != each.default
        ]
        return " ".join([self.policy, *changed])

    def seeds(self, count: int) -> list[FleetCase]:
        """Return the case with each of so many seeds."""
        return [replace(self, seed=seed) for seed in range(count)]


def batch_of(case: FleetCase, recordings: Sequence[Recording], seed: int) -> list[AgentTrajectory]:
    """Return a batch of the case's workload."""
    count = case.per_gpu * GPUS
    if case.workload in DECLARED:
        return DeclaredAgents(DECLARED[case.workload], count, seed).trajectories()
    return RecordedAgents(
        recordings, count, seed, case.token_rate,
        heavy_tools=case.heavy_tools, tool_ratio=case.tool_ratio,
    ).trajectories()  # fmt: skip


def play(case: FleetCase, recordings: Sequence[Recording]) -> FleetResult:
    """Simulate a case. One with predictions has a former batch, on which its predictor is measured."""
    batches = [batch_of(case, recordings, case.seed)]
    if case.predictor or not case.degrees:
        batches.insert(0, batch_of(case, recordings, case.seed + _FORMER))
    planned = case.degrees or planned_degrees(case, batches[0])
    return roll_out(replace(case, degrees=planned).setting, *batches)


def planned_degrees(case: FleetCase, former: Sequence[AgentTrajectory]) -> tuple[int, ...]:
    """Return the degrees that a batch of these lengths is best with, by the estimate of production."""
    spec, lengths = case.spec, [float(each.tokens) for each in former]
    context = mean(each.prompt_tokens + each.tokens / 2 for each in former)
    tables = {
        degree: size_table(spec, degree, case.slots, len(lengths), context)
        for degree in DEGREES
        if spec.kv_tokens(degree) > max(lengths)
    }
    return plan_degrees(lengths, GPUS, tables, np.random.default_rng(case.seed)).degrees


#: What a worker process simulates with; sent once, not with every case.
_recordings: dict[str, Sequence[Recording]] = {}


def simulate_fleets(
    cases: Iterable[FleetCase], recordings: Sequence[Recording], *, jobs: int = 1
) -> dict[FleetCase, FleetResult]:
    """Return case → result."""
    left = list(dict.fromkeys(cases))
    if jobs == 1 or len(left) < 2:
        return {case: play(case, recordings) for case in left}
    with worker_processes(jobs, _begin, recordings) as workers:
        running = {workers.submit(_one, case): case for case in left}
        found = {running[each]: each.result() for each in as_completed(running)}
    return {case: found[case] for case in left}


def _begin(recordings: Sequence[Recording]) -> None:
    _recordings["all"] = recordings


def _one(case: FleetCase) -> FleetResult:
    return play(case, _recordings["all"])


@dataclass(frozen=True)
class Compared:
    """Results of cases over seeds, and what follows from them."""

    results: Mapping[FleetCase, FleetResult]
    seeds: int

    def makespan(self, case: FleetCase) -> Interval:
        """Return seconds of the batch."""
        return interval(self.results[each].makespan for each in case.seeds(self.seeds))

    def throughput(self, case: FleetCase) -> Interval:
        """Return sampled tokens per second."""
        return interval(self.results[each].throughput for each in case.seeds(self.seeds))

    def speedup(self, case: FleetCase, *rivals: FleetCase) -> Interval:
        """Return how many times shorter a case is than the best of rivals, seed by seed.

        The best is one system over all seeds: that with the smallest mean.
        """
        best = min(
            rivals,
            key=lambda rival: mean(self.results[each].makespan for each in rival.seeds(self.seeds)),
        )
        return interval(
            self.results[theirs].makespan / self.results[ours].makespan
            for ours, theirs in zip(case.seeds(self.seeds), best.seeds(self.seeds), strict=True)
        )
