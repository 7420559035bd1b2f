"""AI coding: agents that edit and test a repository, and a test suite as reward at the end.

| parameter | value | source |
|---|---|---|
| think times, durations, families, memory | as recorded | the trace; else `tangram_client.traces.generator` |
| batch | 128 … 1,536 trajectories a step | ARL-Tangram §6.2 (1,280) and §6.3 |
| trajectories of a step | the trace resampled: each recording as often as the others | assumed |
| jitter of copies | think times and durations × lognormal, sigma 0.25 | assumed; without it copies of one recording march in step |
| group | 8 trajectories a prompt | assumed (GRPO is named in §6.1, its group size is not) |
| cores of an interaction | 1, its own for as long as it lasts | §5.1: each core is occupied by a single action |
| key, elasticity of an interaction | none; its duration is not declared | §6.1: rewards alone are profiled |
| reward | `rewards`, in the trajectory's environment | §6.4 |
| number of remaining actions | not declared; with `length_error` declared, × lognormal of that sigma, one draw a trajectory | assumed |
| training between steps | 60 s | assumed; no action runs then |
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final

import numpy as np

from domain.action import EXEC, Action, EnvironmentSpec
from domain.errors import InvalidRequest
from domain.ids import ActionId
from domain.resources import MILLI, Cost
from simulator.cluster import PROJECT
from simulator.work import ActionWork
from simulator.workloads.program import Act, Program, SimulatedTrajectory, Think
from simulator.workloads.rewards import Rewards
from tangram_client.traces.recording import Recording, resample

#: A trajectory under overload may live longer than the two hours that are the default.
LIFE_SECONDS = 30 * 24 * 3600.0
_ONE_CORE: Final[Cost] = {"cpu": (MILLI,)}


@dataclass(frozen=True)
class AiCoding:
    """The workload; `steps` draws the same rollouts whenever it is called."""

    recordings: Sequence[Recording]
    batch: int = 128
    rl_steps: int = 1
    rewards: Rewards = field(default_factory=Rewards)
    seed: int = 0
    group_size: int = 8
    jitter_sigma: float = 0.25
    train_seconds: float = 60.0
    #: Think times are so many times as long as recorded: below 1, actions come in bursts.
    think_ratio: float = 1.0
    #: Trainers declare how many actions follow, with this error (a sigma); None: they do not.
    length_error: float | None = None
    #: Think times grow by this share with each RL step.
    think_growth: float = 0.0
    project: str = PROJECT
    task: str = "ai-coding"

    def __post_init__(self) -> None:
        if not self.recordings:
            raise InvalidRequest("ai-coding: there is no recorded trajectory to resample")
        for name in ("batch", "rl_steps", "group_size"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"ai-coding: {name} must be at least 1")

    @property
    def actions(self) -> int:
        """Number of actions of all steps."""
        return sum(
            len(recording.steps) + 1
            for step in range(self.rl_steps)
            for recording in self._chosen(step)
        )

    def steps(self) -> Iterator[list[SimulatedTrajectory]]:
        """Yield the rollouts of each RL step."""
        for step in range(self.rl_steps):
            yield [
                SimulatedTrajectory(
                    _name(step, number), partial(self._play, step, number, recording)
                )
                for number, recording in enumerate(self._chosen(step))
            ]

    def _chosen(self, step: int) -> list[Recording]:
        return resample(self.recordings, self.batch, seed=self.seed + step)

    def _play(self, step: int, number: int, recording: Recording) -> Program:
        """Think and act as recorded, then run the test suite."""
        chooser = Random(f"{self.seed}/{step}/{number}")
        jitter = self._jitter(chooser, 2 * len(recording.steps))
        name, group = _name(step, number), f"g{step}-{number // self.group_size}"
        environment = EnvironmentSpec(memory_bytes=recording.memory_bytes, ttl_seconds=LIFE_SECONDS)
        factor = self._length_factor(name)
        thinks = self.think_ratio * (1 + self.think_growth) ** step
        for index, recorded in enumerate(recording.steps):
            yield Think(thinks * recorded.think_seconds * jitter[2 * index])
            action = Action(
                id=ActionId(f"{name}.{index}"), project=self.project, task=self.task,
                kind=EXEC, cost=_ONE_CORE, trajectory=name, step=step, group=group,
                family=recorded.family, environment=environment,
                remaining_actions=None if factor is None else round(factor * (len(recording.steps) - index)),
            )  # fmt: skip
            yield Act(action, ActionWork(recorded.duration_seconds * jitter[2 * index + 1]))
        yield self._reward(step, name, group, environment, chooser)

    def _reward(
        self, step: int, name: str, group: str, environment: EnvironmentSpec, chooser: Random
    ) -> Act:
        of_group = self.rewards.group_seconds(Random(f"{self.seed}/{group}"))
        work = self.rewards.member_work(of_group, chooser)
        action = Action(
            id=ActionId(f"{name}.reward"), project=self.project, task=self.task,
            kind=EXEC, cost={"cpu": self.rewards.units}, trajectory=name, step=step,
            group=group, family="reward", environment=environment, key="cpu",
            duration_seconds=work.base_seconds * self.rewards.declared_ratio,
            elasticity=self.rewards.declared_elasticity, malleable=self.rewards.malleable,
            remaining_actions=None if self.length_error is None else 0,
        )  # fmt: skip
        return Act(action, work)

    def _length_factor(self, name: str) -> float | None:
        """Draw how many times the true number of remaining actions is declared; None: it is not."""
        if self.length_error is None:
            return None
        drawn = Random(f"{self.seed}/{name}/length").gauss(0.0, 1.0)
        return math.exp(self.length_error * drawn)

    def _jitter(self, chooser: Random, count: int) -> list[float]:
        """Draw factors around 1, all at once: one at a time costs as much as a decision."""
        generator = np.random.Generator(np.random.PCG64(chooser.getrandbits(64)))
        factors: list[float] = np.exp(self.jitter_sigma * generator.standard_normal(count)).tolist()
        return factors


def _name(step: int, number: int) -> str:
    return f"s{step}-t{number:05d}"
