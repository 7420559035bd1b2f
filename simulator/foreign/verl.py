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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from simulator.foreign.agents import AgentRecorder, AgentStep, enclosed
from simulator.foreign.lines import count_field, each_line, json_object, text_field
from simulator.foreign.modelled import CHARACTERS_OF_TOKEN, REQUEST_GAP_SECONDS, Modelled, tokens_of
from simulator.foreign.trace import BadLines, Trace
from simulator.llm_trace import LlmRequest
from tangram_client.traces.recording import Recording

_MOST_STEP: Final = 10**9
_CALL: Final = "<tool_call>"
_CALL_ENDS: Final = "</tool_call>"
_RESPONSE: Final = "<tool_response>"
_RESPONSE_ENDS: Final = "</tool_response>"
#: Command of a call that cannot be read: it was made all the same.
_UNKNOWN: Final = "unknown"
#: Arguments of tools that are commands.
_COMMANDS: Final = ("command", "cmd", "code", "script")


@dataclass(frozen=True)
class _Sample:
    """One line of a dump, without its texts."""

    step: int
    input_tokens: int
    output_tokens: int
    calls: tuple[AgentStep, ...]


def read_verl(paths: Sequence[Path], bad: BadLines, modelled: Modelled) -> Trace:
    """Read dumps of verl. Raises TraceError naming the file, the line and the field at fault."""
    samples = [sample for path in paths for sample in each_line(path, _sample, bad)]
    samples.sort(key=lambda sample: sample.step)
    recordings, requests, said = tuple[Recording, ...](), tuple[LlmRequest, ...](), _NO_TIMES
    if any(sample.calls for sample in samples):
        recorder = AgentRecorder(modelled)
        recordings = tuple(_recordings(samples, recorder))
        left_out = len(samples) - len(recordings)
        said = (*recorder.said(), "the answer after the last call is not read")
        if left_out:
            said += (f"{left_out} of {len(samples)} samples call no tool and are left out",)
    else:
        requests = tuple(_requests(samples, modelled))
    return Trace(
        source="", format="verl", recordings=recordings, requests=requests, assumed=said,
        skipped=bad.count, complaints=tuple(bad.examples),
    )  # fmt: skip


_NO_TIMES: Final[tuple[str, ...]] = (
    "there are no times: requests follow each other after exponential gaps of"
    f" {REQUEST_GAP_SECONDS:g} s, in the order of the steps",
    "there are no counts of tokens: a token is 4 characters of the text",
)


def _sample(text: str, where: str) -> _Sample:
    body = json_object(text, where)
    given, output = text_field(body, "input", where), text_field(body, "output", where)
    step = count_field(body, "step", where, _MOST_STEP) if body.get("step") is not None else 0
    return _Sample(step, round(tokens_of(given)), round(tokens_of(output)), tuple(_calls(output)))


def _calls(output: str) -> Iterator[AgentStep]:
    """Yield the calls of one output. Calls of one answer come first, then the responses to all of them."""
    responses = list(enclosed(output, _RESPONSE, _RESPONSE_ENDS))
    at = passed = 0
    for number, (begins, ends) in enumerate(enclosed(output, _CALL, _CALL_ENDS)):
        written = begins - at
        while passed < len(responses) and responses[passed][1] < begins:
            # What tools answered before is no text of the model.
            written -= responses[passed][1] - responses[passed][0]
            passed += 1
        answer = responses[number] if number < len(responses) else (0, 0)
        yield AgentStep(
            tokens=(written + ends - begins) / CHARACTERS_OF_TOKEN,
            command=_command(output[begins:ends]),
            output_characters=len(output[slice(*answer)].strip()),
        )
        at = ends


def _command(call: str) -> str:
    """Return the command of a tool call, or the name of its tool."""
    try:
        body = json.loads(call)
    except (ValueError, RecursionError):
        return _UNKNOWN
    if not isinstance(body, dict):
        return _UNKNOWN
    arguments = body.get("arguments")
    for name in _COMMANDS:
        command = arguments.get(name) if isinstance(arguments, dict) else None
        if isinstance(command, str):
            return command
    return str(body.get("name") or _UNKNOWN)


def _recordings(samples: Sequence[_Sample], recorder: AgentRecorder) -> Iterator[Recording]:
    for number, sample in enumerate(samples):
        found = recorder.record(f"step-{sample.step}-{number:05d}", sample.calls)
        if found is not None:
            yield found


def _requests(samples: Sequence[_Sample], modelled: Modelled) -> Iterator[LlmRequest]:
    chooser = Random(f"verl/{modelled.seed}")
    at_seconds = 0.0
    for sample in samples:
        yield LlmRequest(at_seconds, sample.input_tokens, sample.output_tokens)
        at_seconds += chooser.expovariate(1 / REQUEST_GAP_SECONDS)
