"""MOPD and DeepSearch at once: two tasks whose services share GPUs (ARL-Tangram §6.1, "MOPD+Search").

| parameter | value | source |
|---|---|---|
| MOPD | as in `mopd`, 9 teachers | ARL-Tangram §6.1 |
| DeepSearch | as in `deep_search`, but that its judge is a service on GPUs | ARL-Tangram §6.1: 10 services in total |
| steps | both tasks begin each step together; it ends with the last trajectory of both | assumed |
| judge | 63e9 bytes of weights; 1 to 8 GPUs in powers of two from 2 on | GPT-OSS (§6.1) in 4 bits; degrees assumed |
| T_ori of a judgement | 0.1 s + 0.008 s × output tokens of a drawn request, at most 200 | assumed: one answer at a time |
| E(m) of a judgement | 2: 0.85, 4: 0.6, 8: 0.35 | assumed: writing gains less from more GPUs than reading |
| profiled before | T_ori and E(m) are declared | ARL-Tangram §6.1 |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from domain.action import Action, Kind
from domain.apis import CallSpec
from domain.elasticity import Elasticity
from domain.ids import ActionId
from simulator.cluster import GIB, PROJECT
from simulator.gpus import GpuModel
from simulator.work import ActionWork
from simulator.workloads.deep_search import DeepSearch
from simulator.workloads.mopd import TEACHERS, Mopd, teachers
from simulator.workloads.program import Act, SimulatedTrajectory

JUDGE: Final = "judge"
SECONDS_PER_TOKEN: Final = 0.008
CALL_SECONDS: Final = 0.1
ELASTICITY: Final = Elasticity(table=((1000, 1.0), (2000, 0.85), (4000, 0.6), (8000, 0.35)))


def judge() -> GpuModel:
    """Return the model that judges answers."""
    return GpuModel(
        name=JUDGE,
        weight_bytes=int(63e9),
        working_bytes=20 * GIB,
        degrees=(2, 4, 8),
        elasticity=ELASTICITY,
        copy_bytes_per_second=50e9,
        wake_seconds=0.1,
    )


def services(count: int = TEACHERS) -> dict[str, GpuModel]:
    """Return all models of both tasks."""
    return {**teachers(count), JUDGE: judge()}


@dataclass(frozen=True)
class JudgedSearch(DeepSearch):
    """DeepSearch whose judge is a service on GPUs."""

    def _judgement(self, step: int, name: str, group: str, tokens: int) -> Act:
        base_seconds = CALL_SECONDS + tokens * SECONDS_PER_TOKEN
        action = Action(
            id=ActionId(f"{name}.reward"), project=self.project, task=self.task, kind=Kind.CALL,
            cost={"gpu": judge().units}, trajectory=name, step=step, group=group, family="reward",
            key="gpu", duration_seconds=base_seconds, elasticity=ELASTICITY,
            call=CallSpec(f"service:{JUDGE}"),
        )  # fmt: skip
        return Act(action, ActionWork(base_seconds, ELASTICITY, key="gpu"))


@dataclass(frozen=True)
class MopdSearch:
    """Both workloads, played together."""

    mopd: Mopd
    search: JudgedSearch
    train_seconds: float = 60.0
    project: str = PROJECT
    task: str = "mopd-search"

    @property
    def actions(self) -> int:
        """Number of actions of all steps of both tasks."""
        return self.mopd.actions + self.search.actions

    def steps(self) -> Iterator[list[SimulatedTrajectory]]:
        """Yield the rollouts of each RL step of both tasks."""
        for scored, judged in zip(self.mopd.steps(), self.search.steps(), strict=True):
            yield [*scored, *judged]
