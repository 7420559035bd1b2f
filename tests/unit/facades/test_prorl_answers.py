"""What ProRL's clients read of a finished rollout."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from contract.rollout_views import RolloutView
from domain.rollouts import RolloutOutcome, RolloutState, Stage, StageTimes
from facades.prorl.answers import (
    TokenIds,
    Turns,
    conversation,
    judgement,
    pieces,
    status_of,
    timing,
    turns_of,
)

TURN = {"message": {"role": "assistant", "content": None}, "logprobs": None, "weights_version": 1}


def a_turn(context: list[int], response: list[int], **more: Any) -> dict[str, Any]:
    return {**TURN, "context_ids": context, "response_ids": response, **more}


def a_view(outcome: RolloutOutcome = RolloutOutcome.COMPLETED, **more: Any) -> RolloutView:
    return RolloutView(id="rol_1", state=RolloutState.FINISHED, outcome=outcome, **more)


def turns(*found: dict[str, Any], **more: Any) -> Turns:
    return turns_of(msgspec.json.encode({"id": "rol_1", "turns": list(found), **more}))


def answer(found: Turns, form: TokenIds = TokenIds.RESPONSE, **more: Any) -> dict[str, Any]:
    parts = pieces(
        a_view(reward=1.0, **more),
        found,
        instance_id="i",
        trajectory_id=0,
        patch=None,
        token_ids=form,
    )
    read: dict[str, Any] = json.loads(b"".join(parts))
    return read


@pytest.mark.parametrize("form", TokenIds)
def test_the_token_ids_of_all_messages_are_the_sequence_that_was_sampled(form: TokenIds):
    found = turns(
        a_turn(
            [1, 2],
            [3],
            asked=[{"role": "system", "content": "a"}, {"role": "user", "content": "b"}],
        ),
        a_turn(
            [4], [5, 6], follows=0, logprobs=[-1.0, -2.0], asked=[{"role": "tool", "content": "c"}]
        ),
    )
    messages = answer(found, form)["messages"]
    ids: list[int] = []
    for message in messages:
        cut = len(message["input_ids"] or []) if form is TokenIds.FULL else 0
        ids += message["token_ids"][cut:]
    assert ids == [1, 2, 3, 4, 5, 6]
    assert [each["input_ids"] for each in messages] == [None, None, [1, 2], None, [1, 2, 3, 4]]
    assert all(isinstance(each["content"], str) for each in messages)
    last = messages[-1]["logprobs"]
    assert last == ([0.0] * 4 + [-1.0, -2.0] if form is TokenIds.FULL else [-1.0, -2.0])


def test_a_log_without_messages_keeps_its_tokens():
    messages = answer(turns(a_turn([1], [2])))["messages"]
    assert [(each["role"], each["content"], each["token_ids"]) for each in messages] == [
        ("user", "", [1]), ("assistant", "", [2]),
    ]  # fmt: skip


def test_the_last_conversation_is_answered():
    found = turns(
        a_turn([1], [2]), a_turn([3], [4], follows=0), a_turn([9], [8]), a_turn([7], [6], follows=2)
    )
    assert [bytes(turn.response_ids) for turn in conversation(found.turns)] == [b"[8]", b"[6]"]


def test_no_turn_is_no_message():
    assert answer(Turns())["messages"] == []


def test_a_long_conversation_is_written_in_pieces_that_do_not_grow_with_it_all():
    many = [a_turn(list(range(1000)), [1], follows=n - 1 if n else None) for n in range(30)]
    view = a_view(reward=1.0)
    written = [*pieces(view, turns(*many), instance_id="i", trajectory_id=0, patch=None)]
    assert len(json.loads(b"".join(written))["messages"]) == 60
    assert max(map(len, written)) < sum(map(len, written)) / 10


@pytest.mark.parametrize(
    ("reward", "resolved"), [(1.0, True), (0.995, True), (0.99, False), (0.5, False), (0.0, False)]
)
def test_a_reward_above_prorls_bound_is_resolved(reward: float, resolved: bool):
    assert judgement(a_view(reward=reward), Turns())["resolved"] is resolved


@pytest.mark.parametrize("outcome", [each for each in RolloutOutcome if each != "completed"])
def test_i2_no_reward_is_never_resolved_and_always_filtered(outcome: RolloutOutcome):
    said = judgement(a_view(outcome, reason="why"), Turns())
    assert (said["resolved"], said["filter"], said["success"]) == (False, True, False)
    assert said["critical_error"]
    assert "why" in said["error"]


@pytest.mark.parametrize(
    ("end", "finish", "properly", "filtered"),
    [("finished", True, True, False), ("answered", False, True, False), ("iterations", False, True, True),
     ("context", False, False, True), ("stuck", False, True, True), ("silent", False, False, True),
     ("", False, True, False)],
)  # fmt: skip
def test_the_end_of_the_agent_is_said(end: str, finish: bool, properly: bool, filtered: bool):
    said = judgement(a_view(reward=1.0), Turns(value={"end": end} if end else {}))
    assert (said["finish"], said["end_properly"], said["filter"]) == (finish, properly, filtered)


def test_the_stage_of_an_error_is_critical():
    failed = a_view(RolloutOutcome.FAILED, reason="INIT raised ValueError")
    assert judgement(failed, Turns(failed_stage="init"))["critical_error"] == "init"
    assert judgement(failed, Turns(failed_stage="init"))["end_properly"] is False


def test_times_have_the_names_of_prorls_timer_and_of_its_readme():
    times = [StageTimes(Stage.INIT, 5.0, 1.0), StageTimes(Stage.RUN, 0.0, 2.5)]
    found = timing(a_view(times=times, total_seconds=10.0))
    assert found == {
        "init_time": 1.0, "run_time": 2.5, "eval_time": 0.0, "others_time": 6.5, "counted_elapsed": 3.5,
        "timeout_triggered": False,
        "init": 1.0, "run": 2.5, "eval": 0.0, "others": 6.5, "timeout": False,
    }  # fmt: skip


def test_jobs_of_no_stage_wait_for_init():
    found = status_of(5, {"init/queued": 1, "run": 2})
    names = ("jobs", "total", "init", "init_queue", "run", "active_run", "run_queue", "eval_queue")
    assert [found[name] for name in names] == [5, 5, 0, 3, 2, 2, 0, 0]
