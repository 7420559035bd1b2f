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
from math import exp, inf, log, sqrt
from statistics import mean, stdev
from typing import Final

from simulator.cluster import GIB, Cluster
from simulator.compare import Scene, check_policies, run
from simulator.figures import Interval
from simulator.gpus import GPUS_PER_NODE
from simulator.llm_trace import LlmRequest
from simulator.worker_processes import worker_processes
from simulator.workloads.mopd import Mopd, call_seconds, teachers

#: Mean T_ori of a call, on one GPU.
CALL_SECONDS: Final = (0.1, 0.5, 5.0)
GPUS: Final = (8, 16)
#: Share of all GPUs × time that calls need on one GPU each; wider chunks and restores need more.
LOADS: Final = (0.3, 0.9)
SEEDS: Final = 3
RIVALS: Final = ("minimum", "fixed(4)", "fixed(8)")
#: A mean ACT at most this many times the best rival's is not worse.
NOT_WORSE: Final = 1.02
#: 97.5 % quantiles of Student's t for 1, 2, … degrees of freedom; the last one serves for more.
_STUDENT: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


@dataclass(frozen=True)
class GpuCell:
    """One combination of the axes; its seeds are measured together."""

    call_seconds: float
    gpus: int
    load: float
    seeds: int = SEEDS
    #: Of each seed.
    calls: int = 512

    def scene(self, requests: Sequence[LlmRequest], seed: int) -> Scene:
        """Return what all policies meet with ``seed``."""
        usual = mean(call_seconds(each.input_tokens + each.output_tokens) for each in requests)
        workload = Mopd(
            requests, batch=self.calls, seed=seed, train_seconds=0.0,
            rollout_seconds=self.calls * self.call_seconds / (self.load * self.gpus),
            call_scale=self.call_seconds / usual,
        )  # fmt: skip
        nodes = -(-self.gpus // GPUS_PER_NODE)
        cluster = Cluster(nodes, 1, 2400 * GIB, gpus=self.gpus, models=teachers())
        return Scene(workload, cluster, seed=seed)


@dataclass(frozen=True)
class GpuRow:
    """A cell, and each policy's mean ACT in simulated seconds, by seed."""

    cell: GpuCell
    act_seconds: dict[str, list[float]]

    def best(self, rivals: Iterable[str]) -> str:
        """Return the rival with the least mean over seeds."""
        return min(rivals, key=lambda each: mean(self.act_seconds[each]))

    def ratio(self, policy: str, rivals: Iterable[str]) -> Interval:
        """Return the ACT of ``policy`` over that of the best rival: geometric mean over pairs of equal seeds, and its 95 % interval."""
        pairs = zip(self.act_seconds[policy], self.act_seconds[self.best(rivals)], strict=True)
        return geometric([ours / theirs for ours, theirs in pairs])


def geometric(ratios: Sequence[float]) -> Interval:
    """Return the geometric mean of paired ``ratios`` with its 95 % interval by Student's t; of one ratio, all numbers."""
    logs = [log(each) for each in ratios]
    middle = mean(logs)
    if len(logs) < 2:
        return Interval(exp(middle), 0.0, inf)
    degrees = min(len(logs) - 1, len(_STUDENT))
    half = _STUDENT[degrees - 1] * stdev(logs) / sqrt(len(logs))
    return Interval(exp(middle), exp(middle - half), exp(middle + half))


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
    scenes = [cell.scene(requests, seed) for seed in range(cell.seeds)]
    return GpuRow(
        cell,
        {
            policy: [run(scene, policy).result.whole.act.mean for scene in scenes]
            for policy in policies
        },
    )


def worse_on_gpus(
    rows: Iterable[GpuRow], policy: str, rivals: Sequence[str]
) -> list[tuple[GpuRow, Interval]]:
    """Return the rows in which ``policy`` is worse than its best rival, with the ratio.

    Worse: by more than `NOT_WORSE`, with an interval that excludes 1.
    """
    found = [(row, row.ratio(policy, rivals)) for row in rows]
    return [(row, ratio) for row, ratio in found if ratio.mean > NOT_WORSE and ratio.low > 1.0]
