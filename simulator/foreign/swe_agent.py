"""Trajectories of SWE-agent: `.traj` files, one JSON object each.

    {"trajectory": [{"action": "ls\\n", "observation": "setup.py", "response": "Let me look.",
                     "thought": "Let me look.", "execution_time": 0.4, "state": {…}}],
     "info": {"exit_status": "submitted", "model_stats": {"tokens_sent": 9000, "tokens_received": 300}}}

Source: SWE-agent, documentation "Output files", and its `TrajectoryStep`. ``execution_time`` is there since version 1;
older files, and forks of them, have none. A file with one such object on each line is read, too. Not in any of them:
when the model was asked and how long it took, CPU, memory. `modelled` says what stands in their place.

A step whose action is empty called no tool: its answer is thinking before the next call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from simulator.foreign.lines import (
    each_line,
    json_document,
    json_object,
    number_field,
    shown,
    text_field,
)
from simulator.foreign.modelled import MEMORY_BYTES, SAY_CPU, Modelled, family_of, tokens_of
from simulator.foreign.trace import BadLines, Trace
from tangram_client.traces.recording import RecordedStep, Recording, TraceError

#: Files that hold one trajectory a line.
LINES: Final = frozenset({".jsonl", ".ndjson"})


@dataclass(frozen=True)
class _AgentStep:
    """One step of the file: what the model said, and the call that it made, if any."""

    tokens: float
    command: str
    #: None: the file does not say how long it took.
    seconds: float | None
    output_characters: int


def read_swe_agent(paths: Sequence[Path], bad: BadLines, modelled: Modelled) -> Trace:
    """Read trajectories of SWE-agent. Raises TraceError naming the file and the field at fault."""
    reader = _TrajectoryReader(modelled)
    recordings = [each for path in paths for each in _trajectories(path, reader, bad)]
    return Trace(
        source="", format="swe-agent", recordings=tuple(recordings), assumed=reader.said(),
        skipped=bad.count, complaints=tuple(bad.examples),
    )  # fmt: skip


def _trajectories(path: Path, reader: _TrajectoryReader, bad: BadLines) -> Iterator[Recording]:
    if path.suffix in LINES:
        yield from each_line(
            path, lambda text, where: reader.recording(json_object(text, where), where, ""), bad
        )
        return
    try:
        found = reader.recording(json_document(path), str(path), path.stem)
    except TraceError as error:
        bad.take(error)
        return
    yield found


class _TrajectoryReader:
    """Turns trajectories into recordings and counts what they lack."""

    def __init__(self, modelled: Modelled) -> None:
        self._modelled = modelled
        self._steps = self._untimed = self._uncounted = self._trajectories = 0

    def recording(self, body: Mapping[str, Any], where: str, name: str) -> Recording:
        """Return the recording of one trajectory. Raises TraceError."""
        steps = body.get("trajectory")
        if not isinstance(steps, list) or not steps:
            raise TraceError(f"{where}: trajectory must be a list with at least one step")
        answers = [_answer(step, f"{where}: trajectory[{at}]") for at, step in enumerate(steps)]
        name = name or str(body.get("instance_id") or where)
        scale, counted = _token_scale(body, answers, where)
        recorded = tuple(self._recorded(answers, scale, name))
        if not recorded:
            raise TraceError(f"{where}: trajectory has no step with an action")
        self._trajectories += 1
        self._uncounted += not counted
        return Recording(name, recorded, MEMORY_BYTES)

    def _recorded(
        self, answers: Sequence[_AgentStep], scale: float, name: str
    ) -> Iterator[RecordedStep]:
        tokens = 0.0
        for number, answer in enumerate(answers):
            tokens += answer.tokens * scale
            if not answer.command.strip():
                continue
            family = family_of(answer.command)
            drawn = self._modelled.step(family, name, number)
            self._steps += 1
            self._untimed += answer.seconds is None
            yield RecordedStep(
                think_seconds=self._modelled.think_seconds(tokens),
                duration_seconds=drawn.seconds if answer.seconds is None else answer.seconds,
                cpu_cores=drawn.cpu_cores,
                family=family,
                output_characters=answer.output_characters,
            )
            tokens = 0.0

    def said(self) -> tuple[str, ...]:
        """Return what was assumed of all trajectories together, as sentences."""
        said = [self._modelled.say_thinking(), SAY_CPU]
        if self._untimed:
            said.append(
                f"{self._untimed} of {self._steps} tool calls have no execution_time: their durations"
                " are modelled by the family of the command"
            )
        if self._uncounted:
            said.append(
                f"{self._uncounted} of {self._trajectories} trajectories have no tokens_received:"
                " a token is 4 characters of the response"
            )
        return tuple(said)


def _answer(step: Any, where: str) -> _AgentStep:
    if not isinstance(step, Mapping):
        raise TraceError(f"{where} must be a JSON object, not {shown(step)}")
    timed = step.get("execution_time") is not None
    return _AgentStep(
        tokens=tokens_of(
            text_field(step, "response", where, text_field(step, "thought", where, ""))
        ),
        command=text_field(step, "action", where),
        seconds=number_field(step, "execution_time", where) if timed else None,
        output_characters=len(text_field(step, "observation", where, "")),
    )


def _token_scale(
    body: Mapping[str, Any], answers: Sequence[_AgentStep], where: str
) -> tuple[float, bool]:
    """Return the factor from tokens by characters to those that the model counted, and whether it did."""
    info = body.get("info")
    stats = info.get("model_stats") if isinstance(info, Mapping) else None
    by_characters = sum(answer.tokens for answer in answers)
    if not isinstance(stats, Mapping) or not by_characters or not stats.get("tokens_received"):
        return 1.0, False
    counted = number_field(stats, "tokens_received", f"{where}: info.model_stats")
    return counted / by_characters, True
