"""Sessions in Polar's form: tokens pass as JSON text, and rewards are a number or null."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from facades.polar.results import PolarSession, is_usable, session_result

SEGMENT = {
    "prompt_ids": [1], "response_ids": [2, 3], "loss_mask": [0, 1], "logprobs": [0.0, -0.1], "weights_version": [-1, 4],
}  # fmt: skip


def a_session(**members: Any) -> PolarSession:
    document = {
        "id": "rol_1", "outcome": "completed", "reward": 1.0, "weights_versions": [4, 4], "segments": [SEGMENT],
    }  # fmt: skip
    return msgspec.json.decode(msgspec.json.encode({**document, **members}), type=PolarSession)


def result(session: PolarSession, stopped: int | None = None) -> dict[str, Any]:
    found = session_result("t-1", session, {"case": 7}, stopped)
    read: dict[str, Any] = json.loads(msgspec.json.encode(found))
    return read


def test_tokens_are_the_text_of_the_native_document_and_never_lists():
    [trace] = session_result("t-1", a_session(), {})["trajectory"]["traces"]
    names = ("prompt_ids", "response_ids", "loss_mask", "response_logprobs")
    assert [type(trace[name]) for name in names] == [msgspec.Raw] * 4
    [read] = result(a_session())["trajectory"]["traces"]
    assert [read[name] for name in names] == [[1], [2, 3], [0, 1], [0.0, -0.1]]
    assert read["metadata"] == {"weights_versions": [4, 4]}


@pytest.mark.parametrize(
    ("members", "usable"),
    [({}, True), ({"outcome": "timeout"}, False), ({"segments": None}, False), ({"segments": []}, False)]
    + [({"segments": [{**SEGMENT, name: []}]}, False) for name in ("prompt_ids", "response_ids")]
    + [({"segments": [{**SEGMENT, "loss_mask": [0, 0]}]}, False)],
)  # fmt: skip
def test_a_session_with_a_sampled_token_after_a_prompt_is_usable(
    members: dict[str, Any], usable: bool
):
    assert is_usable(a_session(**members)) is usable


@pytest.mark.parametrize("stopped", [None, 3])
def test_a_session_that_an_early_stop_cancelled_says_so_before_the_stop_is_stored(
    stopped: int | None,
):
    reason = "early stop: 3 of 2 usable sessions have ended"
    found = result(a_session(outcome="cancelled", reason=reason, reward=None), stopped)
    assert found["metadata"]["early_stop_usable_sessions"] == 3
    assert found["trajectory"]["traces"] == []


def test_a_completed_session_without_tokens_says_that_they_are_deleted():
    found = result(a_session(segments=None))
    assert (found["status"], found["error"]) == (
        "COMPLETED",
        "the tokens of this session are deleted",
    )
