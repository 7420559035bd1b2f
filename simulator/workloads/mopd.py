"""MOPD: trajectories of many tasks, each scored by the teacher model of its own domain.

| parameter | value | source |
|---|---|---|
| batch | 2,048 trajectories a step; 3,072 in Table 1 | ARL-Tangram §6.1 "Other setup", Table 1 |
| teachers | 9; 10 services with a judge; Figure 3(b) shows 12 | ARL-Tangram §6.1, Figure 8(b), Figure 3(b) |
| call | one a trajectory, at its end: log-probabilities of all its tokens | ARL-Tangram §6.1 "Workloads" |
| when trajectories end | as requests follow each other in the LLM trace, from a drawn place on, stretched | the trace |
| rollout of a step | 600 s from the first end to the last | the trace: 2,048 requests of it take 602 s |
| bursts | those of the trace alone; `peak_ratio` adds ten a rollout, each so many times the mean rate | assumed; Figure 3(d): "three orders of magnitude" |
| tokens of a trajectory | input and output tokens of that request | the trace |
| group | 8 trajectories a prompt, all of one domain | assumed (GRPO: §6.1) |
| domain of a prompt | Zipf, exponent 1, over the teachers | assumed |
| domains end at different times | by rank: domains at even distances of a rollout, spread sigma 0.3 of it | assumed; §6.2: "diverse and partially interleaved" |
| model | 32e9 parameters in 2 bytes | Qwen3-32B, §6.1; that teachers are as large: assumed |
| T_ori | 0.05 s + 2 operations a parameter and token at 400e12 a second | a forward pass; 40 % of a Hopper GPU's dense BF16: assumed |
| degrees | 2, 4, 8 GPUs | chunks: §5.3; one GPU is too small for weights and long inputs: assumed |
| E(m) | 2: 0.95, 4: 0.87, 8: 0.72 | assumed; the paper's is profiled, not printed |
| memory | 80 GiB a GPU; beside the weights 20 GiB on each | assumed; the paper says "high-end" |
| restore | 0.1 s + each GPU's part of the weights at 50e9 bytes a second | assumed: PCIe 5 ×16; not measured here |
| profiled before | T_ori and E(m) are declared | ARL-Tangram §6.1 |
| training between steps | 60 s | assumed |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final, NamedTuple

from domain.action import Action, Kind
from domain.apis import CallSpec
from domain.elasticity import Elasticity
from domain.errors import InvalidRequest
from domain.ids import ActionId
from simulator.cluster import GIB, PROJECT
from simulator.gpus import GpuModel
from simulator.llm_trace import LlmRequest
from simulator.work import ActionWork
from simulator.workloads.program import Act, Program, SimulatedTrajectory, Think

#: GPUs of ARL-Tangram §6.1: five nodes of eight.
GPUS: Final = 40
TEACHERS: Final = 9
ROLLOUT_SECONDS: Final = 600.0
PARAMETERS: Final = 32e9
OPERATIONS_PER_SECOND: Final = 400e12
CALL_SECONDS: Final = 0.05
ELASTICITY: Final = Elasticity(table=((1000, 1.0), (2000, 0.95), (4000, 0.87), (8000, 0.72)))
#: Of a rollout: how far ends of one domain spread.
DOMAIN_SPREAD: Final = 0.3
#: Bursts of a rollout whose `peak_ratio` is above 1.
BURSTS: Final = 10


def teacher(number: int) -> str:
    """Return the name of a teacher's service."""
    return f"teacher-{number}"


def teachers(count: int = TEACHERS) -> dict[str, GpuModel]:
    """Return the models of the table above."""
    return {
        teacher(number): GpuModel(
            name=teacher(number),
            weight_bytes=int(2 * PARAMETERS),
            working_bytes=20 * GIB,
            degrees=(2, 4, 8),
            elasticity=ELASTICITY,
            copy_bytes_per_second=50e9,
            wake_seconds=0.1,
        )
        for number in range(count)
    }


def call_seconds(tokens: int) -> float:
    """Return T_ori of the call about a trajectory of so many tokens."""
    return CALL_SECONDS + 2 * PARAMETERS * tokens / OPERATIONS_PER_SECOND


def bunched(at_seconds: float, span_seconds: float, peak_ratio: float) -> float:
    """Return when an arrival comes once the rate of arrivals is pulsed.

    The span is cut into `BURSTS` equal periods. The arrivals of a period come in its first part, which is
    ``1 / peak_ratio`` of it, in the order that they had: there the rate is ``peak_ratio`` times as high, and
    the mean over a period is what it was.
    """
    if peak_ratio == 1.0 or span_seconds <= 0:
        return at_seconds
    period = span_seconds / BURSTS
    number, within = divmod(at_seconds, period)
    return number * period + within / peak_ratio


class End(NamedTuple):
    """Of one trajectory: when it ends, how long it is then, whose domain it belongs to."""

    at_seconds: float
    tokens: int
    domain: int


@dataclass(frozen=True)
class Mopd:
    """The workload; `steps` draws the same rollouts whenever it is called."""

    requests: Sequence[LlmRequest]
    batch: int = 2048
    rl_steps: int = 1
    seed: int = 0
    group_size: int = 8
    domains: int = TEACHERS
    rollout_seconds: float = ROLLOUT_SECONDS
    #: Calls take so many times as long as in the table above; restores do not change.
    call_scale: float = 1.0
    #: A rollout is longer by this share with each RL step.
    growth: float = 0.0
    #: Rate of arrivals within a burst over the mean rate; see `bunched`.
    peak_ratio: float = 1.0
    train_seconds: float = 60.0
    #: Calls declare T_ori; else it is learned from those that ended.
    declared: bool = True
    project: str = PROJECT
    task: str = "mopd"

    def __post_init__(self) -> None:
        if len(self.requests) < 2:
            raise InvalidRequest(
                "mopd: ends are taken from recorded requests, of which there must be two"
            )
        for name in ("batch", "rl_steps", "group_size", "domains"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"mopd: {name} must be at least 1")
        if not self.peak_ratio >= 1:
            raise InvalidRequest(f"mopd: peak_ratio must be at least 1, not {self.peak_ratio!r}")

    @property
    def actions(self) -> int:
        """Number of actions of all steps."""
        return self.batch * self.rl_steps

    def steps(self) -> Iterator[list[SimulatedTrajectory]]:
        """Yield the rollouts of each RL step."""
        for step in range(self.rl_steps):
            yield [
                SimulatedTrajectory(_name(step, number), partial(self._play, step, number, end))
                for number, end in enumerate(self._ends(step))
            ]

    def _ends(self, step: int) -> list[End]:
        """Give the ends of the trace to trajectories, by when their domains wish to end."""
        domains = [self._domain(step, number // self.group_size) for number in range(self.batch)]
        wishes = [self._wish(step, number, domain) for number, domain in enumerate(domains)]
        ends: list[End | None] = [None] * self.batch
        order = sorted(range(self.batch), key=wishes.__getitem__)
        for number, (at, tokens) in zip(order, self._window(step), strict=True):
            ends[number] = End(at, tokens, domains[number])
        return [end for end in ends if end is not None]

    def _window(self, step: int) -> Iterator[tuple[float, int]]:
        """Yield when requests came and how long they were, over `rollout_seconds`."""
        known = self.requests
        first = Random(f"{self.seed}/{step}/mopd").randrange(len(known))
        lap = known[-1].at_seconds - known[0].at_seconds
        lap += lap / (len(known) - 1)
        chosen = []
        for index in range(first, first + self.batch):
            laps, place = divmod(index, len(known))
            each = known[place]
            chosen.append((laps * lap + each.at_seconds, each.input_tokens + each.output_tokens))
        began, span = chosen[0][0], chosen[-1][0] - chosen[0][0]
        wished = self.rollout_seconds * (1 + self.growth) ** step
        stretch = wished / span if span > 0 else 0.0
        for at, tokens in chosen:
            yield bunched((at - began) * stretch, wished, self.peak_ratio), tokens

    def _domain(self, step: int, group: int) -> int:
        weights = [1 / (rank + 1) for rank in range(self.domains)]
        chooser = Random(f"{self.seed}/{step}/mopd-group/{group}")
        return chooser.choices(range(self.domains), weights)[0]

    def _wish(self, step: int, number: int, domain: int) -> float:
        middle = (domain + 0.5) / self.domains
        return Random(f"{self.seed}/{step}/mopd/{number}").gauss(middle, DOMAIN_SPREAD)

    def _play(self, step: int, number: int, end: End) -> Program:
        """Roll out, then be scored."""
        yield Think(end.at_seconds)
        base_seconds = self.call_scale * call_seconds(end.tokens)
        name = _name(step, number)
        action = Action(
            id=ActionId(f"{name}.reward"), project=self.project, task=self.task, kind=Kind.CALL,
            cost={"gpu": (2000, 4000, 8000)}, trajectory=name, step=step,
            group=f"m{step}-{number // self.group_size}", family="reward", key="gpu",
            duration_seconds=base_seconds if self.declared else None, elasticity=ELASTICITY,
            call=CallSpec(f"service:{teacher(end.domain)}"),
        )  # fmt: skip
        yield Act(action, ActionWork(base_seconds, ELASTICITY, key="gpu"))


def _name(step: int, number: int) -> str:
    return f"m{step}-t{number:05d}"
