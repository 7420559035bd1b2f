"""Steps of agents as their files have them, and the recordings that are made of them.

What a step lacks is modelled and counted (`modelled`), so that the trace says how much of it was recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from simulator.foreign.modelled import MEMORY_BYTES, Modelled, family_of
from tangram_client.traces.recording import RecordedStep, Recording


@dataclass(frozen=True, slots=True)
class AgentStep:
    """One answer of the model, and the call that it made."""

    #: Tokens of the answer.
    tokens: float
    #: Blank: the answer called no tool, and is thinking before the next call.
    command: str
    output_characters: int = 0
    #: None: not recorded.
    tool_seconds: float | None = None
    think_seconds: float | None = None


class AgentRecorder:
    """Makes recordings of steps and counts what they lack."""

    def __init__(self, modelled: Modelled) -> None:
        self._modelled = modelled
        self._calls = self._without_seconds = self._without_thinking = 0
        self._trajectories = self._without_tokens = 0

    def record(
        self, name: str, steps: Sequence[AgentStep], *, counted_tokens: float | None = None
    ) -> Recording | None:
        """Return the recording of a trajectory; None when no step calls a tool.

        ``counted_tokens``: of all answers together, as the model counted them. Without it, those of the steps
        are taken, which the caller counted by characters.
        """
        by_steps = sum(step.tokens for step in steps)
        scale = counted_tokens / by_steps if counted_tokens is not None and by_steps else 1.0
        recorded = tuple(self._recorded(name, steps, scale))
        if not recorded:
            return None
        self._trajectories += 1
        self._without_tokens += counted_tokens is None
        return Recording(name, recorded, MEMORY_BYTES)

    def _recorded(
        self, name: str, steps: Iterable[AgentStep], scale: float
    ) -> Iterator[RecordedStep]:
        tokens = 0.0
        for number, step in enumerate(steps):
            tokens += step.tokens * scale
            if not step.command.strip():
                continue
            family = family_of(step.command)
            drawn = self._modelled.step(family, name, number)
            thought = step.think_seconds
            self._calls += 1
            self._without_seconds += step.tool_seconds is None
            self._without_thinking += thought is None
            yield RecordedStep(
                think_seconds=self._modelled.think_seconds(tokens) if thought is None else thought,
                duration_seconds=drawn.seconds if step.tool_seconds is None else step.tool_seconds,
                cpu_cores=drawn.cpu_cores,
                family=family,
                output_characters=step.output_characters,
            )
            tokens = 0.0

    def said(self) -> tuple[str, ...]:
        """Return what was assumed of all trajectories together, as sentences."""
        rate = f"tokens of the answer at {self._modelled.tokens_per_second:g} a second"
        calls, without = self._calls, self._trajectories - self._without_tokens
        parts = (
            (self._without_thinking, calls, "think times", f"are modelled: {rate}"),
            (self._without_seconds, calls, "durations of tool calls",
             "are modelled by the family of the command"),
            (self._without_tokens, without + self._without_tokens, "trajectories",
             "have no counts of tokens: a token is 4 characters of the answer"),
        )  # fmt: skip
        return (
            *(_said(*part) for part in parts if part[0]),
            "CPU is modelled by the family of the command, memory as 400 MiB a trajectory",
        )


def enclosed(text: str, begins: str, ends: str) -> Iterator[tuple[int, int]]:
    """Yield the bounds of each part between two marks. Linear, where an expression is not for marks that never end."""
    at = 0
    while (first := text.find(begins, at)) >= 0:
        last = text.find(ends, first + len(begins))
        if last < 0:
            return
        yield first + len(begins), last
        at = last + len(ends)


def _said(some: int, of: int, what: str, how: str) -> str:
    return f"all {what} {how}" if some == of else f"{some} of {of} {what} {how}"
