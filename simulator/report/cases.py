"""What can be simulated for a figure, as values: equal cases are simulated once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from simulator.cluster import GIB, Cluster
from simulator.compare import Scene
from simulator.llm_trace import LlmRequest
from simulator.sweep import shortened
from simulator.workloads.ai_coding import AiCoding
from simulator.workloads.deep_search import LIMITS, DeepSearch
from simulator.workloads.rewards import PRESETS
from tangram_client.replay.trace import Recording


@dataclass(frozen=True)
class Case:
    """One simulation. The cluster of ARL-Tangram §6.3 unless said otherwise: 5 × 256 cores."""

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
    depth: int | None = None


@dataclass(frozen=True)
class Scale:
    """How large a report is. `FULL` is the paper's; a smaller one keeps trajectories per core."""

    name: str
    seeds: int
    #: Interactions kept of each recorded trajectory.
    interactions: int
    #: Batches, cores and limits are so many times smaller.
    divisor: int = 1

    def case(self, policy: str, batch: int, **fields: Any) -> list[Case]:
        """Return one case for each seed, at this scale."""
        cases = []
        for seed in range(self.seeds):
            case = replace(Case(policy, batch, seed), **fields)
            if self.divisor > 1:
                cores = case.nodes * case.cores // self.divisor
                small = max(2, round(batch / self.divisor))
                case = replace(case, batch=small, nodes=1, cores=max(4, cores))
            cases.append(case)
        return cases


FULL: Final = Scale("full", seeds=3, interactions=10_000)
#: For CI: seconds, not minutes.
QUICK: Final = Scale("quick", seeds=2, interactions=8, divisor=16)
SCALES: Final = {scale.name: scale for scale in (FULL, QUICK)}


@dataclass(frozen=True)
class Inputs:
    """What workloads draw from."""

    recordings: Sequence[Recording]
    requests: Sequence[LlmRequest]
    #: Where it is from, for the reader.
    source: str

    def at(self, scale: Scale) -> Inputs:
        """Return recordings as long as ``scale`` has them."""
        return replace(self, recordings=shortened(self.recordings, scale.interactions))


def scene(case: Case, inputs: Inputs, divisor: int = 1) -> Scene:
    """Return what is simulated for ``case``."""
    cluster = Cluster(case.nodes, case.cores, 2_400 * GIB)
    if case.workload == "deep-search":
        limits = {name: max(1, limit // divisor) for name, limit in LIMITS.items()}
        search = DeepSearch(inputs.requests, case.batch, case.rl_steps, case.seed)
        return Scene(search, replace(cluster, apis=limits), seed=case.seed)
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
    )
    return Scene(coding, cluster, seed=case.seed, depth=case.depth)
