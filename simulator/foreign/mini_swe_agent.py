"""Trajectories of mini-swe-agent: `.traj.json` files, one JSON object each.

    {"trajectory_format": "mini-swe-agent-1.1", "info": {…}, "messages": [
        {"role": "system", "content": "…"}, {"role": "user", "content": "…"},
        {"role": "assistant", "content": "Let me look.", "extra": {
            "actions": [{"command": "ls"}], "timestamp": 1780680349.44, "response": {"usage": {"completion_tokens": 76}}}},
        {"role": "tool", "content": "…", "extra": {"raw_output": "setup.py", "timestamp": 1780680349.63}}]}

Source: mini-swe-agent, `DefaultAgent.serialize` and its models. Since version 2 ``timestamp`` says when the answer had
come and when the commands of the answer had ended: think times and durations are differences of them. Commands of one
answer run one after the other, and their time is divided evenly among them. Files of version 1 have no times, and the
command in a block of the answer's text. Not in any of them: CPU, memory, the beginning of the first answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from simulator.foreign.agents import AgentRecorder, AgentStep, enclosed
from simulator.foreign.lines import number_field, shown, text_field
from simulator.foreign.modelled import Modelled, tokens_of
from simulator.foreign.swe_agent import trajectories
from simulator.foreign.trace import BadLines, Trace
from tangram_client.traces.recording import Recording, TraceError

#: Marks of a command in the text of an answer.
_BLOCKS: Final = ("```bash\n", "```mswea_bash_command\n")


@dataclass
class _AgentTurn:
    """One answer, and the messages after it up to the next."""

    tokens: float
    #: Whether the model counted them.
    counted: bool
    commands: list[str]
    answered_at: float | None
    outputs: list[int] = field(default_factory=list)
    observed_at: float | None = None


def read_mini_swe_agent(paths: Sequence[Path], bad: BadLines, modelled: Modelled) -> Trace:
    """Read trajectories of mini-swe-agent. Raises TraceError naming the file and the field at fault."""
    recorder = AgentRecorder(modelled)
    shared = 0

    def record(body: Mapping[str, Any], where: str, name: str) -> Recording:
        nonlocal shared
        turns = list(_turns(body, where))
        counted = all(turn.counted for turn in turns)
        found = recorder.record(
            name or str(body.get("instance_id") or where),
            list(_steps(turns, where)),
            counted_tokens=sum(turn.tokens for turn in turns) if counted else None,
        )
        if found is None:
            raise TraceError(f"{where}: messages have no command")
        shared += sum(len(turn.commands) for turn in turns if len(turn.commands) > 1)
        return found

    recordings = tuple(each for path in paths for each in trajectories(path, record, bad))
    said = recorder.said()
    if shared:
        said += (f"{shared} commands shared an answer: its time is divided evenly among them",)
    return Trace(
        source="", format="mini-swe-agent", recordings=recordings, assumed=said,
        skipped=bad.count, complaints=tuple(bad.examples),
    )  # fmt: skip


def _turns(body: Mapping[str, Any], where: str) -> Iterator[_AgentTurn]:
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise TraceError(f"{where}: messages must be a list, not {shown(messages)}")
    turn: _AgentTurn | None = None
    for at, message in enumerate(messages):
        place = f"{where}: messages[{at}]"
        if not isinstance(message, Mapping):
            raise TraceError(f"{place} must be a JSON object, not {shown(message)}")
        extra = _mapping(message.get("extra"))
        if message.get("role") == "assistant":
            if turn is not None:
                yield turn
            turn = _answer(message, extra, place)
        elif turn is not None:
            content = message.get("content")
            text = text_field(
                extra, "raw_output", place, content if isinstance(content, str) else ""
            )
            turn.outputs.append(len(text))
            turn.observed_at = _timestamp(extra, place) or turn.observed_at
    if turn is not None:
        yield turn


def _answer(message: Mapping[str, Any], extra: Mapping[str, Any], where: str) -> _AgentTurn:
    content = message.get("content")
    text = content if isinstance(content, str) else ""
    actions = extra.get("actions")
    if isinstance(actions, list):
        commands = [
            text_field(_mapping(each), "command", f"{where}.extra.actions") for each in actions
        ]
    else:
        commands = [text[a:b] for mark in _BLOCKS for a, b in enclosed(text, mark, "\n```")]
    usage = _mapping(_mapping(extra.get("response")).get("usage"))
    counted = usage.get("completion_tokens") is not None
    by_characters = tokens_of(text) or tokens_of("".join(commands))
    tokens = number_field(usage, "completion_tokens", where) if counted else by_characters
    return _AgentTurn(tokens, counted, commands, _timestamp(extra, where))


def _timestamp(extra: Mapping[str, Any], where: str) -> float | None:
    if extra.get("timestamp") is None:
        return None
    return number_field(extra, "timestamp", f"{where}.extra")


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _steps(turns: Sequence[_AgentTurn], where: str) -> Iterator[AgentStep]:
    observed_at: float | None = None
    for number, turn in enumerate(turns):
        place = f"{where}: timestamp of answer {number}"
        thought = _seconds(observed_at, turn.answered_at, place)
        acted = _seconds(turn.answered_at, turn.observed_at, place)
        count = len(turn.commands)
        if not count:
            # The thinking goes on: until the next answer it is measured from the last observation.
            yield AgentStep(turn.tokens, "")
            continue
        for index, command in enumerate(turn.commands):
            yield AgentStep(
                tokens=0.0 if index else turn.tokens,
                command=command,
                output_characters=turn.outputs[index] if index < len(turn.outputs) else 0,
                tool_seconds=None if acted is None else acted / count,
                think_seconds=0.0 if index else thought,
            )
        observed_at = turn.observed_at


def _seconds(begins: float | None, ends: float | None, where: str) -> float | None:
    if begins is None or ends is None:
        return None
    if ends < begins:
        raise TraceError(f"{where} is before what it follows, by {begins - ends:g} s")
    return ends - begins
