"""Shapes of answers: whole and as events they say the same, with token ids where those are asked for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from managers.gpu.torch_worker.openai_answers import AnswerShape, TokenChoice
from rollout.llm.dialects import DIALECTS, AskedFor

CHOSEN = [TokenChoice(7, -0.5), TokenChoice(2, -1.5)]
PROMPT = [4, 5, 6]


def shape(chat: bool = False, **members: Any) -> AnswerShape:
    return AnswerShape("m", members, PROMPT, chat=chat)


@pytest.mark.parametrize("dialect", ["vllm", "openai"])
def test_the_dialects_of_rollouts_read_tokens_and_log_probabilities(dialect: str) -> None:
    answer = shape(return_token_ids=True, logprobs=0).whole("x", CHOSEN, "stop", 2)
    found = DIALECTS[dialect].read(msgspec.json.encode(answer), AskedFor(PROMPT, 8, 10))
    assert found.ids.tolist() == [7, 2]
    assert found.logprobs is not None
    assert found.logprobs.tolist() == [-0.5, -1.5]


@pytest.mark.parametrize("wanted", [None, False])
def test_log_probabilities_that_nothing_asks_for_are_left_out(wanted: Any) -> None:
    answer = shape(logprobs=wanted).whole("x", CHOSEN, "stop", 0)
    assert answer["choices"][0]["logprobs"] is None
    assert "prompt_token_ids" not in answer["choices"][0]


def test_usage_says_how_much_of_the_prompt_was_cached() -> None:
    assert shape().whole("x", CHOSEN, "stop", 2)["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


@pytest.mark.parametrize("chat", [False, True])
def test_events_make_up_the_whole_answer(chat: bool) -> None:
    made = shape(chat, return_token_ids=True, logprobs=True)
    events = [made.beginning(), made.piece("a", CHOSEN[:1]), made.piece("b", CHOSEN[1:], "stop")]
    whole = made.whole("ab", CHOSEN, "stop", 0)
    choices = [event["choices"][0] for event in events]
    texts = [each["delta"]["content"] if chat else each["text"] for each in choices]
    said = whole["choices"][0]["message"]["content"] if chat else whole["choices"][0]["text"]
    assert "".join(texts) == said == "ab"
    assert [each for choice in choices for each in choice.get("token_ids", [])] == [7, 2]
    first = events[0] if chat else choices[0]
    there = whole if chat else whole["choices"][0]
    assert first["prompt_token_ids"] == there["prompt_token_ids"] == PROMPT
    assert {event["id"] for event in events} == {whole["id"]}


def test_equal_requests_have_equal_answers() -> None:
    """The answer to a fixed request is compared as a whole after a restore (I12)."""
    assert shape(n=1).whole("x", CHOSEN, "stop", 0) == shape(n=1).whole("x", CHOSEN, "stop", 0)
    assert shape(seed=1).whole("x", CHOSEN, "stop", 0)["id"] != shape().whole("x", CHOSEN, "stop", 0)["id"]  # fmt: skip
