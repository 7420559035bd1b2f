"""The agent loop ends for every model, and is the same when it is done again from stored outcomes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.agent.loop import (
    AgentCall,
    AgentLoop,
    AgentTools,
    AskModel,
    LoopEnd,
    LoopEnded,
    LoopLimits,
    LoopStep,
    MakeCalls,
)

OPENING = [{"role": "user", "content": "Mend it."}]
TOOLS = AgentTools(frozenset({"bash", "think"}), ("finish",))


def says(*calls: tuple[str, Any], content: str = "") -> dict[str, Any]:
    """Return an answer with calls: name and arguments, as text where a test needs it."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {
                "id": f"call_{number}",
                "function": {
                    "name": name,
                    "arguments": given if isinstance(given, str) else json.dumps(given),
                },
            }
            for number, (name, given) in enumerate(calls)
        ]
    return message


def loop(tools: AgentTools = TOOLS, **limits: int) -> AgentLoop:
    return AgentLoop(OPENING, tools, LoopLimits(**limits))


def step_of(made: AgentLoop) -> LoopStep:
    return made.step


def test_an_agent_calls_tools_sees_what_they_say_and_finishes():
    made = loop()
    assert step_of(made) == AskModel(OPENING)

    made.answered(says(("bash", {"command": "ls"}), ("think", {})))
    assert step_of(made) == MakeCalls(
        [AgentCall("call_0", "bash", {"command": "ls"}), AgentCall("call_1", "think", {})]
    )
    made.observed(["setup.py", ""])
    assert step_of(made) == AskModel(
        [
            {"role": "tool", "tool_call_id": "call_0", "name": "bash", "content": "setup.py"},
            {"role": "tool", "tool_call_id": "call_1", "name": "think", "content": ""},
        ]
    )
    made.answered(says(("finish", {"summary": "done"})))

    assert step_of(made) == LoopEnded(LoopEnd.FINISHED, {"summary": "done"})
    assert made.iterations == 2


def test_calls_before_a_finishing_one_are_made_and_those_behind_it_are_not():
    made = loop()
    made.answered(says(("bash", {}), ("finish", {"a": 1}), ("bash", {"command": "rm -rf ."})))
    assert step_of(made) == MakeCalls([AgentCall("call_0", "bash", {})])

    made.observed(["x"])

    assert step_of(made) == LoopEnded(LoopEnd.FINISHED, {"a": 1})


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("rm", {}, "There is no tool 'rm'. The tools are bash, finish, think."),
        ("bash", "{", "The arguments of bash are no JSON"),
        ("bash", "[1]", "The arguments of bash are no JSON object."),
        ("finish", "[1]", "The arguments of finish are no JSON object."),
        ("bash", "[" * 100_000, "The arguments of bash are no JSON"),
    ],
)
def test_a_call_that_cannot_be_made_is_answered_and_the_others_are_made(name, arguments, said):
    made = loop()
    made.answered(says((name, arguments), ("bash", {"command": "ls"})))
    assert step_of(made) == MakeCalls([AgentCall("call_1", "bash", {"command": "ls"})])

    made.observed(["setup.py"])

    assert isinstance(made.step, AskModel)
    first, second = made.step.messages
    assert first["content"].startswith(said)
    assert (first["tool_call_id"], second["content"]) == ("call_0", "setup.py")


def test_an_answer_whose_calls_cannot_be_made_is_asked_again_at_once():
    made = loop()
    made.answered(says(("rm", {})))

    assert isinstance(made.step, AskModel)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "call finish when you are done"),
        ({"problem": "a tool call is no JSON"}, "could not be read: a tool call is no JSON"),
        ({"cut": True}, "too long"),
    ],
)
def test_an_agent_that_calls_nothing_is_reminded_and_ends_silent(options, said):
    made = loop(max_reminders=2)
    for _ in range(2):
        made.answered(says(content="I think."), **options)
        assert isinstance(made.step, AskModel)
        assert said in made.step.messages[0]["content"]
    made.answered(says(content="I think."), **options)

    assert step_of(made) == LoopEnded(LoopEnd.SILENT)
    assert not LoopEnd.SILENT.properly


def test_reminders_are_counted_in_a_row():
    made = loop(max_reminders=1)
    for number in range(5):
        made.answered(says(content="hm"))
        made.answered(says(("bash", {"number": number})))
        made.observed(["ok"])

    assert isinstance(made.step, AskModel)


def test_without_a_finishing_tool_an_answer_is_the_result_unless_it_was_cut():
    made = loop(AgentTools(frozenset({"bash"})))
    made.answered(says(content="It is"), cut=True)
    made.answered(says(content="It is 4."))

    assert step_of(made) == LoopEnded(LoopEnd.ANSWERED, {"answer": "It is 4."})
    assert LoopEnd.ANSWERED.properly


def test_an_agent_that_repeats_itself_without_effect_is_stuck():
    made = loop(stuck_after=3)
    for _ in range(2):
        made.answered(says(("bash", {"command": "ls"})))
        made.observed(["setup.py"])
    made.answered(says(("bash", {"command": "ls"})))
    made.observed(["setup.py"])

    assert step_of(made) == LoopEnded(LoopEnd.STUCK)


def test_an_agent_that_repeats_a_call_with_another_effect_is_not_stuck():
    made = loop(stuck_after=3)
    for number in range(6):
        made.answered(says(("bash", {"command": "make"})))
        made.observed([f"{number} errors"])

    assert isinstance(made.step, AskModel)


def test_an_agent_that_calls_tools_that_are_not_there_gets_stuck():
    made = loop(stuck_after=3)
    for _ in range(3):
        made.answered(says(("rm", {})))

    assert step_of(made) == LoopEnded(LoopEnd.STUCK)


def test_iterations_have_a_bound_and_the_last_answer_still_counts():
    made = loop(max_iterations=2)
    made.answered(says(("bash", {"n": 1})))
    made.observed(["a"])
    made.answered(says(("bash", {"n": 2})))
    made.observed(["b"])
    assert step_of(made) == LoopEnded(LoopEnd.ITERATIONS)

    made = loop(max_iterations=1)
    made.answered(says(("finish", {})))
    assert step_of(made) == LoopEnded(LoopEnd.FINISHED, {})


def test_a_full_context_ends_the_loop():
    made = loop()
    made.overflowed()

    assert step_of(made) == LoopEnded(LoopEnd.CONTEXT)


def test_an_outcome_of_another_step_is_refused_and_changes_nothing():
    made = loop()
    with pytest.raises(ValueError, match="AskModel, not MakeCalls"):
        made.observed([])
    made.answered(says(("bash", {})))
    with pytest.raises(ValueError, match="2 observations of 1 calls"):
        made.observed(["a", "b"])
    with pytest.raises(ValueError, match="MakeCalls, not AskModel"):
        made.overflowed()

    assert isinstance(made.step, MakeCalls)


ANSWERS = st.tuples(
    st.lists(st.sampled_from(["bash", "think", "rm", "finish"]), max_size=3),
    st.sampled_from(["{}", '{"a": 1}', "{", "[]"]),
    st.sampled_from(["", "no JSON"]),
    st.booleans(),
)


@given(st.lists(ANSWERS, min_size=30, max_size=40), st.booleans())
def test_every_model_comes_to_an_end_and_the_same_one_again(answers, finishing):
    tools = TOOLS if finishing else AgentTools(frozenset({"bash"}))
    ends = []
    for _ in range(2):
        made, left = loop(tools, max_iterations=20), iter(answers)
        while not isinstance(made.step, LoopEnded):
            if isinstance(made.step, AskModel):
                names, arguments, problem, cut = next(left)
                calls = [(name, arguments) for name in names]
                made.answered(says(*calls), problem=problem, cut=cut)
            else:
                made.observed([f"{made.iterations}"] * len(made.step.calls))
        ends.append((made.step, made.iterations))
    assert ends[0] == ends[1]
    assert ends[0][1] <= 20
