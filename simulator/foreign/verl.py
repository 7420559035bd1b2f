"""Samples that verl dumps: one JSON object a line, a file for each training step.

    {"input": "user\\nFix it.", "output": "<tool_call>{…}</tool_call> …", "gts": null, "score": 1.0, "step": 12}

Written where ``trainer.rollout_data_dir`` or ``trainer.validation_data_dir`` is set (verl, `_dump_generations`). ``gts``
and what reward functions add are not read. Texts are decoded tokens; there are no times and no token counts.

A dump whose outputs have ``<tool_call>`` tags (Hermes, Qwen) gives recordings: text up to a call is thinking, the
text of ``<tool_response>`` its output. Samples without a call are then left out, as they have no action. A dump without
any call gives requests, one for each sample, in the order of the steps.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from simulator.foreign.lines import count_field, each_line, json_object, text_field
from simulator.foreign.modelled import (
    MEMORY_BYTES,
    REQUEST_GAP_SECONDS,
    SAY_CPU,
    Modelled,
    family_of,
    tokens_of,
)
from simulator.foreign.trace import BadLines, Trace
from simulator.llm_trace import LlmRequest
from tangram_client.traces.recording import RecordedStep, Recording

_MOST_STEP: Final = 10**9
_CALL: Final = "<tool_call>"
_CALL_ENDS: Final = "</tool_call>"
_RESPONSE: Final = re.compile(r"\s*(?:user\s*)?<tool_response>(.*?)</tool_response>", re.DOTALL)
#: Arguments of tools that are commands.
_COMMANDS: Final = ("command", "cmd", "code", "script")


@dataclass(frozen=True)
class _DumpedCall:
    """One tool call of a sample."""

    tokens_before: float
    command: str
    output_characters: int


@dataclass(frozen=True)
class _Sample:
    """One line of a dump, without its texts."""

    step: int
    input_tokens: int
    output_tokens: int
    calls: tuple[_DumpedCall, ...]


def read_verl(paths: Sequence[Path], bad: BadLines, modelled: Modelled) -> Trace:
    """Read dumps of verl. Raises TraceError naming the file, the line and the field at fault."""
    samples = [sample for path in paths for sample in each_line(path, _sample, bad)]
    samples.sort(key=lambda sample: sample.step)
    called = any(sample.calls for sample in samples)
    recordings = tuple(_recordings(samples, modelled)) if called else ()
    requests = () if called else tuple(_requests(samples, modelled))
    return Trace(
        source="", format="verl", recordings=recordings, requests=requests,
        assumed=_said_of_calls(samples, modelled) if called else _SAID_OF_REQUESTS,
        skipped=bad.count, complaints=tuple(bad.examples),
    )  # fmt: skip


_SAID_OF_REQUESTS: Final = (
    "there are no times: requests follow each other after exponential gaps of"
    f" {REQUEST_GAP_SECONDS:g} s, in the order of the steps",
    "a token is 4 characters of the text",
)


def _said_of_calls(samples: Sequence[_Sample], modelled: Modelled) -> tuple[str, ...]:
    without = sum(not sample.calls for sample in samples)
    said = [
        modelled.say_thinking(),
        "a token is 4 characters of the text",
        "durations of all tool calls are modelled by the family of the command",
        SAY_CPU,
        "the answer after the last call is not read",
    ]
    if without:
        said.append(f"{without} of {len(samples)} samples call no tool and are left out")
    return tuple(said)


def _sample(text: str, where: str) -> _Sample:
    body = json_object(text, where)
    given, output = text_field(body, "input", where), text_field(body, "output", where)
    step = count_field(body, "step", where, _MOST_STEP) if body.get("step") is not None else 0
    return _Sample(step, round(tokens_of(given)), round(tokens_of(output)), tuple(_calls(output)))


def _calls(output: str) -> Iterator[_DumpedCall]:
    at = 0
    while (begins := output.find(_CALL, at)) >= 0:
        ends = output.find(_CALL_ENDS, begins)
        if ends < 0:  # cut off by the limit of tokens: it was never made
            return
        after = ends + len(_CALL_ENDS)
        response = _RESPONSE.match(output, after)
        yield _DumpedCall(
            tokens_of(output[at:after]),
            _command(output[begins + len(_CALL) : ends]),
            len(response.group(1).strip()) if response else 0,
        )
        at = response.end() if response else after


def _command(call: str) -> str:
    """Return the command of a tool call, or the name of its tool."""
    try:
        body = json.loads(call)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(body, dict):
        return ""
    arguments = body.get("arguments")
    for name in _COMMANDS:
        command = arguments.get(name) if isinstance(arguments, dict) else None
        if isinstance(command, str):
            return command
    return str(body.get("name", ""))


def _recordings(samples: Sequence[_Sample], modelled: Modelled) -> Iterator[Recording]:
    for number, sample in enumerate(samples):
        if not sample.calls:
            continue
        name = f"step-{sample.step}-{number:05d}"
        steps = []
        for index, call in enumerate(sample.calls):
            family = family_of(call.command)
            drawn = modelled.step(family, name, index)
            steps.append(
                RecordedStep(
                    modelled.think_seconds(call.tokens_before), drawn.seconds, drawn.cpu_cores,
                    family, call.output_characters,
                )
            )  # fmt: skip
        yield Recording(name, tuple(steps), MEMORY_BYTES)


def _requests(samples: Sequence[_Sample], modelled: Modelled) -> Iterator[LlmRequest]:
    chooser = Random(f"verl/{modelled.seed}")
    at_seconds = 0.0
    for sample in samples:
        yield LlmRequest(at_seconds, sample.input_tokens, sample.output_tokens)
        at_seconds += chooser.expovariate(1 / REQUEST_GAP_SECONDS)
