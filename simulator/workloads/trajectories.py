"""Trajectories: agents as a fleet of language-model workers sees them, tokens and tool seconds turn by turn.

| parameter | value | source |
|---|---|---|
| coding: think seconds, tool seconds, length of outputs | as recorded | the trace; else `tangram_client.traces.generator` |
| coding: tokens of a turn | think seconds × ``token_rate`` | assumed: the trace has seconds and no tokens |
| coding: turns | 8 recorded steps each, with the tool of the last of them | assumed; the paper's agents have few, long turns with one tool each |
| coding: heavy tools | all tools of the 8 steps, one after the other | a harder case of the benchmarks |
| search, math: tool seconds | 1.42 and 0.05 on average | Heddle, Table 1 |
| search, math: turns, tokens of a turn and of an output | `DECLARED` | assumed: "shorter sequences and frequent interaction steps" |
| tokens of a trajectory | at most 40,000 | Heddle §7 |
| group | 16 of a prompt; half of them follow the group's recording | Heddle §7; the half is assumed, after Figure 5 |

No tool runs after the last turn, which is the answer. Prompts are not shared among the trajectories of a group.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, NamedTuple

from domain.errors import InvalidRequest
from tangram_client.traces.recording import RecordedStep, Recording, resample

#: Characters of a tool's output that are one token.
_CHARACTERS_OF_TOKEN: Final = 4.0
_MOST_OUTPUT_TOKENS: Final = 2_000
_TOOL_FLOOR_SECONDS: Final = 0.01


class ModelTurn(NamedTuple):
    """One generation, and the tool after it."""

    tokens: int
    tool_seconds: float
    #: What the tool adds to the next prompt.
    output_tokens: int


@dataclass(frozen=True, slots=True)
class AgentTrajectory:
    """All turns of one trajectory."""

    key: str
    group: str
    prompt_tokens: int
    turns: tuple[ModelTurn, ...]

    @property
    def tokens(self) -> int:
        """Tokens that it samples."""
        return sum(turn.tokens for turn in self.turns)

    @property
    def tool_seconds(self) -> float:
        """Seconds of its tools."""
        return sum(turn.tool_seconds for turn in self.turns)


@dataclass(frozen=True)
class RecordedAgents:
    """Trajectories after recorded ones; the same for the same seed."""

    recordings: Sequence[Recording]
    count: int
    seed: int = 0
    token_rate: float = 60.0
    merged_steps: int = 8
    group_size: int = 16
    #: Part of a group that follows its recording; the others follow recordings of their own.
    following: float = 0.5
    most_tokens: int = 40_000
    prompt_tokens: int = 1_000
    #: A turn has the tools of all its steps, not of the last one alone.
    heavy_tools: bool = False
    #: Tools take so many times as long as recorded.
    tool_ratio: float = 1.0
    jitter_sigma: float = 0.25

    def __post_init__(self) -> None:
        if not self.recordings:
            raise InvalidRequest("trajectories: there is no recorded trajectory to resample")
        if self.count < 1 or self.group_size < 1 or self.merged_steps < 1:
            raise InvalidRequest(
                "trajectories: count, group_size and merged_steps are at least 1, not"
                f" {self.count}, {self.group_size} and {self.merged_steps}"
            )

    def trajectories(self) -> list[AgentTrajectory]:
        """Return the trajectories of one batch."""
        groups = math.ceil(self.count / self.group_size)
        found = []
        for group, recording in enumerate(resample(self.recordings, groups, seed=self.seed)):
            chooser = Random(f"{self.seed}/{group}")
            for member in range(min(self.group_size, self.count - group * self.group_size)):
                follows = member < self.following * self.group_size
                followed = recording if follows else chooser.choice(self.recordings)
                turns = tuple(self._turns(followed.steps, chooser))
                name = f"g{group:04d}"
                found.append(
                    AgentTrajectory(f"{name}-{member:02d}", name, self.prompt_tokens, turns)
                )
        return found

    def _turns(self, steps: Sequence[RecordedStep], chooser: Random) -> Iterator[ModelTurn]:
        left = self.most_tokens
        for at in range(0, len(steps), self.merged_steps):
            merged = steps[at : at + self.merged_steps]
            last = at + self.merged_steps >= len(steps)
            jitter = math.exp(chooser.gauss(0.0, self.jitter_sigma))
            tokens = round(jitter * self.token_rate * sum(step.think_seconds for step in merged))
            tokens = min(max(tokens, 1), left)
            left -= tokens
            called = merged if self.heavy_tools else merged[-1:]
            tools = self.tool_ratio * sum(step.duration_seconds for step in called)
            read = sum(step.output_characters for step in merged) / _CHARACTERS_OF_TOKEN
            ends = last or left == 0
            yield ModelTurn(
                tokens,
                0.0 if ends else tools * math.exp(chooser.gauss(0.0, self.jitter_sigma)),
                0 if ends else min(round(read), _MOST_OUTPUT_TOKENS * len(merged)),
            )
            if ends:
                return


@dataclass(frozen=True)
class DeclaredShape:
    """Medians and lognormal sigmas of one kind of agent."""

    turns: float
    turns_sigma: float
    most_turns: int
    tokens: float
    tokens_sigma: float
    #: Mean, with sigma 1.
    tool_seconds: float
    output_tokens: int
    prompt_tokens: int


DECLARED: Final = {
    "search": DeclaredShape(8.0, 0.6, 40, 250.0, 0.8, 1.42, 900, 400),
    "math": DeclaredShape(4.0, 0.7, 24, 1_200.0, 0.9, 0.05, 60, 300),
}


@dataclass(frozen=True)
class DeclaredAgents:
    """Trajectories of a declared shape. Half of the variance of lengths is the group's, half the member's."""

    shape: DeclaredShape
    count: int
    seed: int = 0
    group_size: int = 16
    most_tokens: int = 40_000

    def trajectories(self) -> list[AgentTrajectory]:
        """Return the trajectories of one batch."""
        found = []
        for number in range(self.count):
            group, member = divmod(number, self.group_size)
            shared = Random(f"{self.seed}/{group}").gauss(0.0, math.sqrt(0.5))
            chooser = Random(f"{self.seed}/{group}/{member}")
            name = f"g{group:04d}"
            found.append(
                AgentTrajectory(
                    f"{name}-{member:02d}", name, self.shape.prompt_tokens,
                    tuple(self._turns(shared, chooser)),
                )
            )  # fmt: skip
        return found

    def _turns(self, shared: float, chooser: Random) -> Iterator[ModelTurn]:
        shape, left = self.shape, self.most_tokens
        own = shared + chooser.gauss(0.0, math.sqrt(0.5))
        drawn = round(shape.turns * math.exp(shape.turns_sigma * own))
        turns = min(max(drawn, 1), shape.most_turns)
        for turn in range(turns):
            # A trajectory that is hard has longer turns, too.
            spread = shape.tokens_sigma * (0.5 * own + chooser.gauss(0.0, math.sqrt(0.75)))
            tokens = min(max(round(shape.tokens * math.exp(spread)), 1), left)
            left -= tokens
            ends = turn == turns - 1 or left == 0
            tool = shape.tool_seconds * math.exp(chooser.gauss(-0.5, 1.0))
            yield ModelTurn(
                tokens,
                0.0 if ends else max(tool, _TOOL_FLOOR_SECONDS),
                0 if ends else shape.output_tokens,
            )
            if ends:
                return
