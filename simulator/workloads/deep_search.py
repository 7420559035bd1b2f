"""DeepSearch: agents that search and read under API limits, and a judge as reward at the end.

| parameter | value | source |
|---|---|---|
| batch | 2,048 trajectories a step | ARL-Tangram §6.1 "Other setup" |
| group | 8 trajectories a question | assumed (GRPO is named in §6.1) |
| turns | lognormal, median 15, sigma 0.6, 1 to 60; a group's question has one median | assumed |
| think time | output tokens of a request drawn from the LLM trace × 0.02 s | tokens: the trace; 50 tokens/s: assumed |
| search | `api:search`, 1 at a time; lognormal, median 1.0 s, sigma 0.7, at most 30 s | assumed |
| reading | `api:pdf` in 3 of 10 turns; lognormal, median 4 s, sigma 0.8, at most 60 s | services: §6.1; figures: assumed |
| judge | `api:judge`, once; 0.5 s + 0.02 s × output tokens of a drawn request, at most 200 | LLM judge: §6.1; figures: assumed |
| limits | 64 searches, 128 readings, 64 judgements at once | assumed; concurrency-based, §5 "Basic Resource Manager" |
| a trajectory whose call failed | is given up, without a reward | ARL-Tangram §6.2: ineffective |
| training between steps | 60 s | assumed |

The judge's GPUs are counted as places that may be taken at once; `mopd_search` has it as a service on
GPUs instead. No API fails here; what the limits prevent is the unmanaged baseline's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from domain.action import Action, Kind, Outcome
from domain.errors import InvalidRequest
from domain.ids import ActionId
from domain.resources import MILLI
from simulator.cluster import PROJECT
from simulator.llm_trace import LlmRequest
from simulator.work import ActionWork
from simulator.workloads.program import Act, Program, SimulatedTrajectory, Think

SECONDS_PER_TOKEN: Final = 0.02
#: Cluster-wide limits of the default cluster.
LIMITS: Final = {"api:search": 64, "api:pdf": 128, "api:judge": 64}


@dataclass(frozen=True)
class DeepSearch:
    """The workload; `steps` draws the same rollouts whenever it is called."""

    requests: Sequence[LlmRequest]
    batch: int = 2048
    rl_steps: int = 1
    seed: int = 0
    group_size: int = 8
    median_turns: float = 15.0
    reading_share: float = 0.3
    #: Of thinking, for each output token.
    token_seconds: float = SECONDS_PER_TOKEN
    #: Think times grow by this share with each RL step.
    think_growth: float = 0.0
    train_seconds: float = 60.0
    project: str = PROJECT
    task: str = "deep-search"

    def __post_init__(self) -> None:
        if not self.requests:
            raise InvalidRequest("deep-search: there is no recorded request to draw from")
        for name in ("batch", "rl_steps", "group_size"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"deep-search: {name} must be at least 1")

    @property
    def actions(self) -> int:
        """Number of actions of all steps."""
        return sum(
            self._turns(step, number) + 1
            for step in range(self.rl_steps)
            for number in range(self.batch)
        )

    def steps(self) -> Iterator[list[SimulatedTrajectory]]:
        """Yield the rollouts of each RL step."""
        for step in range(self.rl_steps):
            yield [
                SimulatedTrajectory(_name(step, number), partial(self._play, step, number))
                for number in range(self.batch)
            ]

    def _turns(self, step: int, number: int) -> int:
        group = Random(f"{self.seed}/{step}/group/{number // self.group_size}")
        question = self.median_turns * math.exp(0.4 * group.gauss(0.0, 1.0))
        member = Random(f"{self.seed}/{step}/{number}/turns")
        # Both spreads together are the sigma of the table: 0.4² + 0.45² ≈ 0.6².
        return min(60, max(1, round(question * math.exp(0.45 * member.gauss(0.0, 1.0)))))

    def _play(self, step: int, number: int) -> Program:
        """Think and search or read, turn by turn, then be judged."""
        chooser = Random(f"{self.seed}/{step}/{number}")
        name, group = _name(step, number), f"g{step}-{number // self.group_size}"
        pace = self.token_seconds * (1 + self.think_growth) ** step
        for turn in range(self._turns(step, number)):
            yield Think(self._thought(chooser) * pace)
            if chooser.random() < self.reading_share:
                family, seconds = "pdf", min(60.0, 4.0 * math.exp(0.8 * chooser.gauss(0.0, 1.0)))
            else:
                family, seconds = "search", min(30.0, math.exp(0.7 * chooser.gauss(0.0, 1.0)))
            answer = yield self._call(
                step, name, group, f"{turn}", family, f"api:{family}", seconds
            )
            if answer is not None and answer.outcome is not Outcome.COMPLETED:
                return
        yield Think(self._thought(chooser) * pace)
        yield self._judgement(step, name, group, min(200, self._thought(chooser)))

    def _judgement(self, step: int, name: str, group: str, tokens: int) -> Act:
        """Return the call of the judge, which writes so many tokens."""
        seconds = 0.5 + tokens * SECONDS_PER_TOKEN
        return self._call(step, name, group, "reward", "reward", "api:judge", seconds)

    def _thought(self, chooser: Random) -> int:
        return chooser.choice(self.requests).output_tokens

    def _call(
        self, step: int, name: str, group: str, index: str, family: str, api: str, seconds: float
    ) -> Act:
        action = Action(
            id=ActionId(f"{name}.{index}"), project=self.project, task=self.task, kind=Kind.CALL,
            cost={api: (MILLI,)}, trajectory=name, step=step, group=group, family=family,
        )  # fmt: skip
        return Act(action, ActionWork(seconds, key=api))


def _name(step: int, number: int) -> str:
    return f"s{step}-t{number:05d}"
