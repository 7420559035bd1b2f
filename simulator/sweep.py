"""Is a policy ever worse than its rivals? A grid of cells, each policy's mean ACT in each.

A cell is a small cluster with so many trajectories for each core and rewards so long; the axes are
light to heavy load, short to long rewards, few to many cores. All policies of a cell meet the same
draws, so their ratios are about the policies alone. Rewards are declared malleable: a policy that
does not resize ignores that. All of it is simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product

from domain.errors import InvalidRequest
from simulator.bounds import bounds
from simulator.cluster import GIB, Cluster
from simulator.compare import Scene, check_policies, run
from simulator.paired import PairedRow
from simulator.worker_processes import worker_processes
from simulator.workloads.ai_coding import AiCoding
from simulator.workloads.rewards import PRESETS
from tangram_client.traces.recording import Recording

#: Trajectories a core, from idle to crowded. The paper's testbed lies between 0.2 and 2
#: (ARL-Tangram §6.3: batches of 128 to 1,536 on 768 to 1,280 cores).
LOADS = (0.125, 0.5, 1.0, 2.0, 4.0, 8.0)
REWARDS = ("light", "medium", "heavy")
#: (nodes, cores of each): 1,280 cores are what the paper scales on (§6.3).
CLUSTERS = ((1, 16), (1, 64), (4, 64), (5, 256))


@dataclass(frozen=True)
class Cell:
    """One combination of the axes."""

    nodes: int
    cores: int
    trajectories_per_core: float
    rewards: str
    seed: int = 0

    @property
    def batch(self) -> int:
        """Trajectories of the one step that is simulated."""
        return max(2, round(self.trajectories_per_core * self.nodes * self.cores))

    def scene(self, recordings: Sequence[Recording]) -> Scene:
        """Return what all policies meet here."""
        rewards = replace(PRESETS[self.rewards], malleable=True)
        workload = AiCoding(
            recordings, batch=self.batch, rewards=rewards, seed=self.seed, train_seconds=0.0
        )
        return Scene(workload, Cluster(self.nodes, self.cores, 2400 * GIB), seed=self.seed)


@dataclass(frozen=True)
class Row:
    """A cell, and each policy's mean ACT in it, in simulated seconds."""

    cell: Cell
    act_seconds: dict[str, float]
    bounds: dict[str, float] = field(default_factory=dict)

    def ratio(self, policy: str, rivals: Iterable[str]) -> float:
        """Return the mean ACT of ``policy`` over that of its best rival."""
        others = [self.act_seconds[rival] for rival in rivals if rival != policy]
        if not others:
            raise InvalidRequest(f"{policy} has no rival to compare with")
        return self.act_seconds[policy] / min(others)


def cells(
    clusters: Iterable[tuple[int, int]] = CLUSTERS,
    loads: Iterable[float] = LOADS,
    rewards: Iterable[str] = REWARDS,
    seeds: Iterable[int] = (0,),
) -> list[Cell]:
    """Return the grid."""
    return [
        Cell(nodes, cores, load, reward, seed)
        for (nodes, cores), load, reward, seed in product(clusters, loads, rewards, seeds)
    ]


def shortened(recordings: Iterable[Recording], steps: int) -> list[Recording]:
    """Return recordings cut after ``steps`` interactions, so that a sweep is quick."""
    return [replace(recording, steps=recording.steps[:steps]) for recording in recordings]


def sweep(
    recordings: Sequence[Recording],
    grid: Iterable[Cell],
    policies: Sequence[str],
    *,
    jobs: int = 1,
    done: Callable[[Row], None] | None = None,
) -> list[Row]:
    """Simulate every cell under every policy, ``jobs`` cells at once, each in its own process.

    ``done`` receives each row, in the order of the grid.
    """
    check_policies(policies)
    measure = partial(_measure, recordings, tuple(policies))
    rows = []
    with ExitStack() as stack:
        if jobs > 1:
            results = stack.enter_context(worker_processes(jobs)).map(measure, grid)
        else:
            results = map(measure, grid)
        for row in results:
            rows.append(row)
            if done is not None:
                done(row)
    return rows


def _measure(recordings: Sequence[Recording], policies: Sequence[str], cell: Cell) -> Row:
    scene = cell.scene(recordings)
    acts = {policy: run(scene, policy).result.whole.act.mean for policy in policies}
    return Row(cell, acts, bounds(scene.workload, cell.nodes * cell.cores))


def paired(rows: Iterable[Row]) -> list[PairedRow[Cell]]:
    """Return the rows of equal cells as one row with all their seeds, named by the first seed."""
    groups: dict[Cell, list[Row]] = {}
    for row in rows:
        groups.setdefault(replace(row.cell, seed=0), []).append(row)
    return [
        PairedRow(
            some[0].cell,
            {policy: [each.act_seconds[policy] for each in some] for policy in some[0].act_seconds},
            {bound: [each.bounds[bound] for each in some] for bound in some[0].bounds},
        )
        for some in groups.values()
    ]
