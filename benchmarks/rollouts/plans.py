"""Plans of rollouts: how many steps each takes, how long its model and its tools take, and which reward it gets.

A plan is text in the question to the model (``PLAN 34/0.410 22/0.100``: tokens of the response and seconds of the tool, by step),
so whatever serves the model needs no other knowledge. Lengths are drawn by a declared seed, or are those of recorded
trajectories.

Rules
1. Drawn steps: 4 to 14, with the tail of a log-normal; tools exponential with a mean of 0.42 s, as Table 3 of the paper has
   with its efficient shell; tokens exponential around their mean.
2. Recorded steps: those of ``bash`` in a trajectory of the trace, every fifth, so that a run takes minutes. ``scaled`` ones have the
   mean tool time of 0.42 s and keep the distribution; ``recorded`` ones have their recorded durations.
3. Rewards are 0 or 1. A declared share of the prompts has samples with different rewards; the others teach nothing.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Final, NamedTuple

TOOL_SECONDS: Final = 0.42
#: Tokens of a response; at `language_models.TOKEN_SECONDS` each.
TOKENS: Final = 60
_LEAST_TOKENS: Final = 45
_MOST_TOKENS: Final = 200
_STEPS: Final = (4, 14)
_EVERY: Final = 5
#: Share of prompts whose samples have different rewards.
INFORMATIVE: Final = 0.6
_PLAN: Final = re.compile(r"PLAN((?: \d+/[0-9.]+)*)")


class PlannedStep(NamedTuple):
    """A response of so many tokens, then a tool of so many seconds."""

    tokens: int
    tool_seconds: float


class PlannedRollout(NamedTuple):
    """What one rollout does."""

    name: str
    prompt: str
    steps: tuple[PlannedStep, ...]
    reward: float

    @property
    def question(self) -> str:
        """The question to the model."""
        written = "".join(f" {each.tokens}/{each.tool_seconds:.3f}" for each in self.steps)
        return f"PLAN{written}"


Lengths = Callable[[random.Random], tuple[PlannedStep, ...]]


def steps_in(text: str) -> tuple[PlannedStep, ...]:
    """Return the steps that a conversation asks for."""
    found = _PLAN.search(text)
    words = found.group(1).split() if found else []
    pairs = (word.split("/") for word in words)
    return tuple(PlannedStep(int(tokens), float(seconds)) for tokens, seconds in pairs)


def drawn(tokens: int = TOKENS, tool_seconds: float = TOOL_SECONDS) -> Lengths:
    """Return lengths by the declared distributions."""

    def lengths(chance: random.Random) -> tuple[PlannedStep, ...]:
        least, most = _STEPS
        count = min(most, max(least, round(chance.lognormvariate(2.0, 0.4))))
        return tuple(_drawn_step(chance, tokens, tool_seconds) for _ in range(count))

    return lengths


def _drawn_step(chance: random.Random, tokens: int, tool_seconds: float) -> PlannedStep:
    wanted = round(chance.expovariate(1 / max(1, tokens - _LEAST_TOKENS))) + _LEAST_TOKENS
    return PlannedStep(min(wanted, _MOST_TOKENS), chance.expovariate(1 / tool_seconds))


def recorded(trace: Path, tokens: int = TOKENS, *, scaled: bool) -> Lengths:
    """Return the lengths of recorded trajectories."""
    found = [each for each in map(_tool_seconds, _trajectories(trace)) if each]
    factor = TOOL_SECONDS / mean(second for each in found for second in each) if scaled else 1.0

    def lengths(chance: random.Random) -> tuple[PlannedStep, ...]:
        seconds = chance.choice(found)
        return tuple(
            _drawn_step(chance, tokens, TOOL_SECONDS)._replace(tool_seconds=factor * each)
            for each in seconds
        )

    return lengths


def _trajectories(trace: Path) -> Iterator[list[dict[str, object]]]:
    for line in trace.read_text().splitlines():
        yield json.loads(line)["steps"]


def _tool_seconds(steps: Sequence[dict[str, object]]) -> list[float]:
    every = [float(str(each["dur_s"])) for each in steps if each["tool"] == "bash"]
    return every[::_EVERY]


def prompts(
    count: int, samples: int, lengths: Lengths, seed: int, prefix: str = "p"
) -> list[PlannedRollout]:
    """Return the samples of some prompts, prompt by prompt."""
    chance = random.Random(seed)
    informative = round(INFORMATIVE * count)
    differ = [True] * informative + [False] * (count - informative)
    chance.shuffle(differ)
    return [
        PlannedRollout(f"{prefix}{number}.{sample}", f"{prefix}{number}", lengths(chance), reward)
        for number in range(count)
        for sample, reward in enumerate(_rewards(chance, samples, differ=differ[number]))
    ]


def _rewards(chance: random.Random, samples: int, *, differ: bool) -> list[float]:
    """Return the rewards of the samples of a prompt."""
    if not differ or samples < 2:
        return [float(chance.random() > 0.5)] * samples
    found = [0.0, 1.0, *(float(chance.random() > 0.5) for _ in range(samples - 2))]
    chance.shuffle(found)
    return found
