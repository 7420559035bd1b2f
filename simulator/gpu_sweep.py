"""Is a policy ever worse on GPUs than a fixed count? A grid of cells of service calls, each policy's mean ACT.

A cell is a pool of GPUs that nine teachers of MOPD share (`workloads.mopd`), with calls so long and so many a
second. Calls follow each other as recorded requests do. All policies of a cell and seed meet the same draws, so they
are compared seed by seed. All of it is simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import mean
from typing import Final

from simulator.bounds import NO_WAITING, SRPT, bounds
from simulator.cluster import GIB, Cluster
from simulator.compare import Scene, check_policies, run
from simulator.gpus import GPUS_PER_NODE
from simulator.llm_trace import LlmRequest
from simulator.paired import SEEDS, PairedRow
from simulator.worker_processes import worker_processes
from simulator.workloads.mopd import Mopd, call_seconds, teachers

#: Mean T_ori of a call, on one GPU.
CALL_SECONDS: Final = (0.1, 0.5, 5.0)
GPUS: Final = (8, 16)
#: Share of all GPUs × time that calls need on one GPU each; wider chunks and restores need more.
LOADS: Final = (0.3, 0.9)
RIVALS: Final = ("minimum", "fixed(4)", "fixed(8)")
#: The policy that is measured with learned durations as well, and the name of that.
LEARNED_OF: Final = "malleable"
LEARNED: Final = "malleable, learned"


@dataclass(frozen=True)
class GpuCell:
    """One combination of the axes; its seeds are measured together."""

    call_seconds: float
    gpus: int
    load: float
    seeds: int = SEEDS
    #: Of each seed.
    calls: int = 512

    def scene(self, requests: Sequence[LlmRequest], seed: int, *, declared: bool = True) -> Scene:
        """Return what all policies meet with ``seed``; ``declared``: calls declare T_ori."""
        usual = mean(call_seconds(each.input_tokens + each.output_tokens) for each in requests)
        workload = Mopd(
            requests, batch=self.calls, seed=seed, train_seconds=0.0,
            rollout_seconds=self.calls * self.call_seconds / (self.load * self.gpus),
            call_scale=self.call_seconds / usual, declared=declared,
        )  # fmt: skip
        nodes = -(-self.gpus // GPUS_PER_NODE)
        cluster = Cluster(nodes, 1, 2400 * GIB, gpus=self.gpus, models=teachers())
        return Scene(workload, cluster, seed=seed)


#: A cell and what was measured in it.
GpuRow = PairedRow[GpuCell]


def gpu_cells(seeds: int = SEEDS) -> list[GpuCell]:
    """Return the grid."""
    return [GpuCell(*axes, seeds) for axes in product(CALL_SECONDS, GPUS, LOADS)]


def gpu_sweep(
    requests: Sequence[LlmRequest],
    grid: Iterable[GpuCell],
    policies: Sequence[str],
    *,
    jobs: int = 1,
    done: Callable[[GpuRow], None] | None = None,
) -> list[GpuRow]:
    """Simulate every cell under every policy, ``jobs`` cells at once; ``done`` receives each row, in order."""
    check_policies(policies)
    measure = partial(_measure, requests, tuple(policies))
    rows: list[GpuRow] = []
    if jobs > 1:
        with worker_processes(jobs) as workers:
            for row in workers.map(measure, grid):
                _take(row, rows, done)
    else:
        for cell in grid:
            _take(measure(cell), rows, done)
    return rows


def _take(row: GpuRow, rows: list[GpuRow], done: Callable[[GpuRow], None] | None) -> None:
    rows.append(row)
    if done is not None:
        done(row)


def _measure(requests: Sequence[LlmRequest], policies: Sequence[str], cell: GpuCell) -> GpuRow:
    seeds = range(cell.seeds)
    found = [bounds(cell.scene(requests, seed).workload, cell.gpus) for seed in seeds]
    acts = {
        policy: [_act_seconds(cell.scene(requests, seed), policy) for seed in seeds]
        for policy in policies
    }
    if LEARNED_OF in policies:
        scenes = [cell.scene(requests, seed, declared=False) for seed in seeds]
        acts[LEARNED] = [_act_seconds(scene, LEARNED_OF) for scene in scenes]
    return GpuRow(cell, acts, {name: [each[name] for each in found] for name in (NO_WAITING, SRPT)})


def _act_seconds(scene: Scene, policy: str) -> float:
    return run(scene, policy).result.whole.act.mean
