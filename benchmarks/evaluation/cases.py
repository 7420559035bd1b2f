"""Cases: the simulations that figures need, as values. Equal cases are simulated once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from benchmarks.evaluation import serverless_llm, static_services
from simulator.baselines.kubernetes import RULES, Kubernetes
from simulator.cluster import GIB, Cluster, LargerCluster
from simulator.compare import BASELINES, MakeBaseline, Scene
from simulator.llm_trace import LlmRequest
from simulator.sweep import shortened
from simulator.workloads import calibrated
from simulator.workloads.ai_coding import AiCoding
from simulator.workloads.calibrated import CALIBRATIONS
from simulator.workloads.deep_search import LIMITS, DeepSearch
from simulator.workloads.mopd import GPUS, ROLLOUT_SECONDS, TEACHERS, Mopd, teachers
from simulator.workloads.mopd_search import JUDGE, JudgedSearch, MopdSearch, judge, services
from simulator.workloads.rewards import PRESETS
from tangram_client.traces.recording import Recording

#: Baselines that serve models on GPUs and nothing else.
SERVING: Final[dict[str, MakeBaseline]] = {
    name: partial(static_services.StaticServices, gpus=gpus)
    for name, gpus in static_services.RULES.items()
} | {serverless_llm.NAME: serverless_llm.ServerlessLlm}
# `simulator.compare` runs them by name, in worker processes too: those import this module.
BASELINES.update(SERVING)

#: Kubernetes with other limits of pods a node, by name.
PODS: Final = {f"kubernetes({pods} pods)": pods for pods in (40, 80, 110, 160, 250)}
BASELINES.update(
    (name, partial(Kubernetes, rules=replace(RULES["kubernetes(110)"], pods_per_node=pods)))
    for name, pods in PODS.items()
)
#: The same with timeouts of the control plane.
PODS_WITH_TIMEOUTS: Final = {f"kubernetes(timeouts, {pods} pods)": pods for pods in PODS.values()}
BASELINES.update(
    (name, partial(Kubernetes, rules=replace(RULES["kubernetes(timeouts)"], pods_per_node=pods)))
    for name, pods in PODS_WITH_TIMEOUTS.items()
)

#: Workloads of teacher models alone.
TEACHERS_ALONE: Final = frozenset({"mopd", "mopd(calibrated)"})
#: Workloads whose services are on GPUs.
ON_GPUS: Final = TEACHERS_ALONE | {"mopd-search", "judged-search"}


@dataclass(frozen=True)
class Case:
    """One simulation. The clusters of ARL-Tangram §6.3 unless said otherwise: 5 × 256 cores, 40 GPUs."""

    policy: str
    batch: int
    seed: int = 0
    workload: str = "ai-coding"
    nodes: int = 5
    cores: int = 256
    rl_steps: int = 1
    rewards: str = "medium"
    declared_ratio: float = 1.0
    declared_share: float | None = None
    think_ratio: float = 1.0
    jitter_sigma: float = 0.25
    #: Error of declared numbers of remaining actions; None: they are not declared.
    length_error: float | None = None
    depth: int | None = None
    gpus: int = GPUS
    teachers: int = TEACHERS
    #: Ends of a rollout come within so much of the time that they take at full scale.
    rollout_ratio: float = 1.0
    #: Other values of declared parameters, of calibrated workloads alone.
    calibration: tuple[tuple[str, float], ...] = ()
    #: Nodes of the cluster that this one stands for, and its share of it.
    larger_nodes: int = 0
    larger_share: float = 1.0


@dataclass(frozen=True)
class Scale:
    """The size of a report. `FULL` is the paper's; a smaller one keeps trajectories per core.

    GPUs are never fewer, for chunks and services do not shrink: there a smaller scale has shorter
    rollouts with fewer calls, as many a second. Where both tasks call, judgements are fewer a second.
    """

    name: str
    seeds: int
    #: Interactions kept of each recorded trajectory.
    interactions: int
    #: Batches, cores and limits are so many times smaller.
    divisor: int = 1
    #: MOPD alone, and MOPD beside DeepSearch, are so many times shorter.
    mopd_divisor: int = 1
    both_divisor: int = 1
    #: RL steps of headlines that the paper averages over ten (ARL-Tangram §6.2), and of those of MOPD.
    headline_steps: int = 1
    #: Whether headlines are simulated on the mix that was made from ratios as well.
    mixed: bool = True

    def exactly(self, policy: str, batch: int, **fields: Any) -> list[Case]:
        """Return one case for each seed, as small as it is given."""
        return [replace(Case(policy, batch, seed), **fields) for seed in range(self.seeds)]

    def case(self, policy: str, batch: int, **fields: Any) -> list[Case]:
        """Return one case for each seed, at this scale."""
        return [self._smaller(case) for case in self.exactly(policy, batch, **fields)]

    def _smaller(self, case: Case) -> Case:
        if case.workload in ON_GPUS:
            divisor = self.mopd_divisor if case.workload in TEACHERS_ALONE else self.both_divisor
            small = max(2, round(case.batch / divisor))
            return replace(case, batch=small, nodes=5, cores=1, rollout_ratio=1 / divisor)
        if self.divisor == 1:
            return case
        cores = case.nodes * case.cores // self.divisor
        small = max(2, round(case.batch / self.divisor))
        cores = max(4, cores)
        share = cores / (case.nodes * case.cores)
        return replace(case, batch=small, nodes=1, cores=cores, larger_nodes=case.nodes, larger_share=share)  # fmt: skip

    def part_of_limits(self, case: Case) -> int:
        """Return how many times smaller limits of APIs are."""
        return self.both_divisor if case.workload in ON_GPUS else self.divisor


FULL: Final = Scale("full", seeds=3, interactions=10_000, headline_steps=10, mixed=False)
#: The default: about ten minutes on one core.
STANDARD: Final = Scale("standard", seeds=3, interactions=10_000, divisor=16, both_divisor=8)
#: For CI: seconds, not minutes.
QUICK: Final = Scale("quick", seeds=2, interactions=8, divisor=16, mopd_divisor=16, both_divisor=16)
SCALES: Final = {scale.name: scale for scale in (FULL, STANDARD, QUICK)}


@dataclass(frozen=True)
class Inputs:
    """Recordings that workloads draw from."""

    recordings: Sequence[Recording]
    requests: Sequence[LlmRequest]
    #: Where it is from, for the reader.
    source: str

    def at(self, scale: Scale) -> Inputs:
        """Return recordings as long as ``scale`` has them."""
        return replace(self, recordings=shortened(self.recordings, scale.interactions))


def scene(case: Case, inputs: Inputs, scale: Scale = FULL) -> Scene:
    """Return what is simulated for ``case``."""
    larger = LargerCluster(case.larger_nodes, case.larger_share) if case.larger_nodes else None
    cluster = Cluster(case.nodes, case.cores, 2_400 * GIB, stands_for=larger)
    if case.workload in CALIBRATIONS:
        return _calibrated(case, inputs, cluster, scale)
    limits = {name: max(1, limit // scale.part_of_limits(case)) for name, limit in LIMITS.items()}
    if case.workload == "deep-search":
        search = DeepSearch(inputs.requests, case.batch, case.rl_steps, case.seed)
        return Scene(search, replace(cluster, apis=limits), seed=case.seed)
    if case.workload in ON_GPUS:
        return _on_gpus(case, inputs, replace(cluster, gpus=case.gpus), limits)
    rewards = replace(
        PRESETS[case.rewards],
        malleable=True,
        declared_ratio=case.declared_ratio,
        declared_share=case.declared_share,
    )
    coding = AiCoding(
        inputs.recordings,
        case.batch,
        case.rl_steps,
        rewards,
        case.seed,
        jitter_sigma=case.jitter_sigma,
        think_ratio=case.think_ratio,
        length_error=case.length_error,
    )
    return Scene(coding, cluster, seed=case.seed, depth=case.depth)


def _calibrated(case: Case, inputs: Inputs, cluster: Cluster, scale: Scale) -> Scene:
    """Return a calibrated workload; its GPUs and services are the case's, its limits scaled."""
    declared = CALIBRATIONS[case.workload].with_values(dict(case.calibration))
    size = calibrated.Size(case.batch, case.rl_steps, case.seed)
    hops = calibrated.overheads(declared)
    if case.workload in TEACHERS_ALONE:
        span = declared["arrival_seconds"] * case.rollout_ratio
        mopd = calibrated.mopd(inputs.requests, size, declared)
        mopd = replace(mopd, domains=case.teachers, rollout_seconds=span)
        models = calibrated.models(declared, case.teachers)
        return Scene(mopd, replace(cluster, gpus=case.gpus, models=models), hops, seed=case.seed)
    if case.workload.startswith("deep-search"):
        part = scale.part_of_limits(case)
        limits = {
            name: max(1, limit // part) for name, limit in calibrated.limits(declared).items()
        }
        search = calibrated.deep_search(inputs.requests, size, declared)
        return Scene(search, replace(cluster, apis=limits), hops, seed=case.seed)
    coding = calibrated.ai_coding(inputs.recordings, size, declared)
    return Scene(coding, cluster, hops, seed=case.seed)


def _on_gpus(case: Case, inputs: Inputs, cluster: Cluster, limits: dict[str, int]) -> Scene:
    mopd = Mopd(
        inputs.requests, case.batch, case.rl_steps, case.seed, domains=case.teachers,
        rollout_seconds=ROLLOUT_SECONDS * case.rollout_ratio,
    )  # fmt: skip
    if case.workload == "mopd":
        return Scene(mopd, replace(cluster, models=teachers(case.teachers)), seed=case.seed)
    limits.pop("api:judge")
    judged = JudgedSearch(inputs.requests, case.batch, case.rl_steps, case.seed)
    if case.workload == "judged-search":
        models = {JUDGE: judge()}
        return Scene(judged, replace(cluster, apis=limits, models=models), seed=case.seed)
    cluster = replace(cluster, apis=limits, models=services(case.teachers))
    return Scene(MopdSearch(mopd, judged), cluster, seed=case.seed)
