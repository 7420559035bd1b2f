"""Calls of tools are read from every text, and what cannot be read is said in words for the model."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.tokens.tool_calls import read_response


def call(name: str = "bash", **arguments: object) -> str:
    document = {"name": name, "arguments": arguments}
    return f"<tool_call>\n{json.dumps(document)}\n</tool_call>"


def names(text: str) -> list[str]:
    calls = read_response(text).message.get("tool_calls", [])
    return [each["function"]["name"] for each in calls]


def test_calls_have_ids_that_are_the_same_when_the_log_is_read_again():
    text = "I look.\n" + call(command="ls") + "\n" + call("think", thought="é")

    first, again = read_response(text, turn=3), read_response(text, turn=3)

    assert first == again
    assert first.problem == ""
    assert first.message["content"] == "I look."
    assert [each["id"] for each in first.message["tool_calls"]] == ["call_3_0", "call_3_1"]
    functions = [each["function"] for each in first.message["tool_calls"]]
    assert functions[0] == {"name": "bash", "arguments": '{"command": "ls"}'}
    assert json.loads(functions[1]["arguments"]) == {"thought": "é"}


def test_a_list_of_calls_is_read():
    assert names('[TOOL_CALLS][{"name": "a", "arguments": {}}, {"name": "b", "arguments": "{}"}]') == ["a", "b"]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<tool_call>{", "no end"),
        ("<tool_call>{]</tool_call>", "no JSON"),
        ('<tool_call>{"arguments": {}}</tool_call>', "no name"),
        ('<tool_call>{"name": 3}</tool_call>', "no name"),
        ('<tool_call>"bash"</tool_call>', "no name"),
        ('<tool_call>{"name": "bash", "arguments": [1]}</tool_call>', "arguments of bash"),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", "no JSON"),
    ],
)
def test_a_call_that_cannot_be_read_stays_in_the_text(text, problem):
    found = read_response(text)

    assert problem in found.problem
    assert found.message == {"role": "assistant", "content": text}


@pytest.mark.parametrize(
    ("text", "begun", "reasoning", "content"),
    [
        ("<think>\nadd\n</think>\n\n4", False, "add", "4"),
        ("add</think>4", True, "add", "4"),
        ("still thinking", True, "still thinking", ""),
        ("<think>cut", False, "cut", ""),
        ("4", False, None, "4"),
    ],
)
def test_reasoning_is_apart_from_the_content(text, begun, reasoning, content):
    message = read_response(text, reasoning_begun=begun).message

    assert message.get("reasoning_content") == reasoning
    assert message["content"] == content


@given(st.text(max_size=80))
def test_reading_fails_for_no_text(text):
    message = read_response(f"<tool_call>{text}</tool_call>{text}").message

    assert message["role"] == "assistant"
