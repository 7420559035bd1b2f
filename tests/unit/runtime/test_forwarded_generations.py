"""What a worker gets of a client's request, and what the client gets of a stream."""

from __future__ import annotations

import json
from typing import Any

import pytest

from domain.errors import InvalidRequest
from domain.fleets import FleetEngine, FleetWorker, PriorityUse, TokenUsage
from placement.priorities import MOST_RANK
from scheduler.runtime.fleet_router import wire_priorities
from scheduler.runtime.fleet_router.answer_usage import StreamUsage, usage_of
from scheduler.runtime.fleet_router.forwarded_request import ForwardedRequest, forwarded
from scheduler.runtime.fleet_router.wire_priorities import WirePriorities, refuses_priority

CHAT = "/v1/chat/completions"
#: Digits that no float keeps.
RAW = b' {"model": "m", "seed": 12345678901234567890123, "messages": []}\n'


def asked(
    engine: FleetEngine = FleetEngine.VLLM, source: str = "", **body: Any
) -> ForwardedRequest:
    body = {"model": "m", **body}
    return forwarded(body, json.dumps(body).encode(), CHAT, engine, source)


def sent(request: ForwardedRequest, priority: int | None = None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(request.body(priority))
    return found


def test_the_bytes_of_a_client_are_sent_on_as_they_are():
    request = forwarded({"model": "m", "messages": []}, RAW, CHAT, FleetEngine.VLLM, "")

    assert request.body(None) == RAW.strip()
    assert request.body(-7) == b'{"priority":-7,' + RAW.strip()[1:]


def test_the_source_of_a_fleet_is_the_model_of_its_workers():
    assert sent(asked(source="/models/q"), 3) == {"model": "/models/q", "priority": 3}


@pytest.mark.parametrize(
    ("options", "hides", "expected"),
    [
        ({}, True, {"include_usage": True}),
        ({"stream_options": None}, True, {"include_usage": True}),
        ({"stream_options": {"x": 1}}, True, {"x": 1, "include_usage": True}),
        ({"stream_options": {"include_usage": True}}, False, {"include_usage": True}),
    ],
)
def test_the_usage_of_a_stream_is_asked_for(options: Any, hides: bool, expected: Any):
    request = asked(stream=True, **options)

    assert request.hides_usage is hides
    assert sent(request)["stream_options"] == expected


def test_a_server_of_another_engine_is_not_asked_for_more():
    request = asked(FleetEngine.OPENAI, stream=True)

    assert not request.hides_usage
    assert "stream_options" not in sent(request)


def test_an_engines_priority_is_refused_and_null_is_none():
    with pytest.raises(InvalidRequest) as refused:
        asked(priority=0)
    assert refused.value.pointer == "/priority"
    assert sent(asked(priority=None)) == {"model": "m"}


@pytest.mark.parametrize(
    ("prompt", "tokens"), [([1, 2, 3], 3), ([[1, 2], [3]], 3), ("x" * 400, 105), (None, 7)]
)
def test_the_tokens_of_a_prompt_are_counted_or_estimated(prompt: Any, tokens: int):
    assert asked(prompt=prompt).prompt_tokens == pytest.approx(tokens, abs=4)


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


WORD = event(choices=[{"delta": {"content": 'he said \\"usage\\": {'}}])
LAST = event(choices=[], usage={"prompt_tokens": 9, "completion_tokens": 2})
DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("hides", [True, False])
def test_a_stream_passes_in_whole_events_without_a_usage_that_was_not_asked_for(
    size: int, hides: bool
):
    whole, reader = WORD + WORD + LAST + DONE, StreamUsage(hides=hides)
    pieces = [reader.feed(whole[at : at + size]) for at in range(0, len(whole), size)]

    assert all(piece.endswith(b"\n\n") for piece in pieces if piece)
    assert b"".join(pieces) + reader.end() == whole.replace(LAST, b"" if hides else LAST)
    assert reader.usage(100) == TokenUsage(9, 2)


def test_a_stream_without_usage_counts_its_events():
    reader = StreamUsage(hides=True)
    assert reader.feed(WORD + WORD) == WORD + WORD
    assert reader.usage(100) == TokenUsage(100, 2)


def test_events_may_end_as_windows_writes_lines():
    reader = StreamUsage(hides=True)
    assert reader.feed(b"data: {}\r\n\r\ndata: {") == b"data: {}\r\n\r\n"
    assert reader.end() == b"data: {"


@pytest.mark.parametrize(
    ("answer", "usage"),
    [
        ({"usage": {"prompt_tokens": 5, "completion_tokens": 6,
                    "prompt_tokens_details": {"cached_tokens": 4}}}, TokenUsage(5, 6, 4)),
        ({"usage": {"prompt_tokens": 5, "prompt_tokens_details": None}}, TokenUsage(5)),
        ({"meta_info": {"prompt_tokens": 5, "completion_tokens": 6, "cached_tokens": 4}}, TokenUsage(5, 6, 4)),
        ({"usage": None}, None),
        ({"usage": {"prompt_tokens": "five"}}, None),
        ([], None),
    ],
)  # fmt: skip
def test_the_usage_of_a_whole_answer_is_read(answer: Any, usage: TokenUsage | None):
    assert usage_of(json.dumps(answer).encode()) == usage


@pytest.mark.parametrize(
    ("engine", "use", "expected"),
    [
        (FleetEngine.VLLM, PriorityUse.UNKNOWN, -32),
        (FleetEngine.VLLM, PriorityUse.IGNORED, None),
        (FleetEngine.VLLM, PriorityUse.REFUSED, None),
        (FleetEngine.SGLANG, PriorityUse.LOWER_FIRST, -32),
        (FleetEngine.SGLANG, PriorityUse.GREATER_FIRST, 32),
        (FleetEngine.OPENAI, PriorityUse.ACCEPTED, None),
        (FleetEngine.TORCH, PriorityUse.UNKNOWN, None),
    ],
)
def test_each_worker_gets_the_priority_that_it_was_probed_to_take(
    engine: FleetEngine, use: PriorityUse, expected: int | None
):
    worker = FleetWorker(name="w", url="http://w:1", priorities=use)
    assert WirePriorities().integer(engine, worker, MOST_RANK, 1) == expected


def test_a_worker_that_refused_a_priority_is_tried_again_later(monkeypatch: pytest.MonkeyPatch):
    now = 0.0
    monkeypatch.setattr(wire_priorities, "monotonic", lambda: now)
    worker, priorities = FleetWorker(name="w", url="http://w:1"), WirePriorities()
    priorities.note_refusal(worker.url)
    assert priorities.integer(FleetEngine.VLLM, worker, 1.0, 0) is None

    now = wire_priorities.REFUSED_SECONDS
    assert priorities.integer(FleetEngine.VLLM, worker, 1.0, 0) is not None


@pytest.mark.parametrize(
    ("status", "text", "refuses"),
    [
        (400, "Got priority 3 but Priority scheduling is not enabled.", True),
        (503, "Using priority is disabled for this server. Please send", True),
        (400, "This model's maximum context length is 7", False),
        (200, "Priority scheduling is not enabled", False),
    ],
)
def test_the_refusals_of_engines_are_known(status: int, text: str, refuses: bool):
    assert refuses_priority(status, text.encode()) is refuses
