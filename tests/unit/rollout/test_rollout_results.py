"""Results: an answer of a handler that is no reward never becomes one."""

from __future__ import annotations

import math

import pytest

from domain.rollouts import RolloutOutcome, RolloutResult, Stage
from rollout.core.groups import summary_of
from rollout.core.records import Facts
from rollout.core.results import (
    MAX_REASON_CHARACTERS,
    Conclusion,
    Failure,
    NonsenseAnswer,
    checked_mapping,
    conclusion_of,
    failed,
    result_of,
)


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        (1, 1.0),
        (0.25, 0.25),
        (True, 1.0),
        ({"reward": -2}, -2.0),
        ({"reward": 0, "reason": "x"}, 0.0),
    ],
)
def test_numbers_are_rewards(answer, reward):
    assert conclusion_of(answer).reward == reward


@pytest.mark.parametrize("answer", [None, {}, {"reward": None, "reason": "no test ran"}])
def test_a_completed_rollout_without_reward_has_a_reason(answer):
    conclusion = conclusion_of(answer)

    assert conclusion.outcome is RolloutOutcome.COMPLETED
    assert conclusion.reward is None
    assert conclusion.reason


@pytest.mark.parametrize(
    "answer",
    [math.nan, math.inf, -math.inf, 10**400, "1.0", [1.0], {"reward": "x"}, {"reward": math.nan},
     {"reward": 1.0, "reason": 3}],
)  # fmt: skip
def test_nonsense_is_no_reward(answer):
    with pytest.raises(NonsenseAnswer):
        conclusion_of(answer)


@pytest.mark.parametrize("answer", [1, "x", [1], {1: 2}])
def test_init_and_run_answer_with_a_mapping(answer):
    with pytest.raises(NonsenseAnswer, match=r"RUN answered a .*: return a dict, or None"):
        checked_mapping(Stage.RUN, answer)


@pytest.mark.parametrize("outcome", [each for each in RolloutOutcome if each != "completed"])
def test_i2_only_a_completed_rollout_has_a_reward(outcome):
    result = result_of(Facts(), Conclusion(outcome, "why", reward=1.0))

    assert result.reward is None
    assert result.reason == "why"


def test_a1_1_an_error_keeps_its_type():
    assert failed(Stage.EVAL, Failure("KeyError", "'x'")).reason == "EVAL raised KeyError: 'x'"
    assert failed(Stage.RUN, Failure("TimeoutError")).reason == "RUN raised TimeoutError"


def test_a_long_reason_is_cut():
    reason = result_of(Facts(), Conclusion(RolloutOutcome.FAILED, "x" * 5_000)).reason

    assert len(reason) == MAX_REASON_CHARACTERS
    assert reason.endswith("…")


def of(reward: float | None, outcome: RolloutOutcome = RolloutOutcome.COMPLETED) -> RolloutResult:
    return RolloutResult(outcome, reward)


def test_a_group_is_informative_when_its_rewards_differ():
    summary = summary_of(3, [of(1.0), of(0.0), of(1.0)])

    assert (summary.complete, summary.informative, summary.wasted) == (True, True, False)
    assert summary.mean == pytest.approx(2 / 3)


def test_a_failed_sample_is_no_reward_of_its_group():
    summary = summary_of(3, [of(1.0), of(None, RolloutOutcome.INFRA_FAILED), of(1.0)])

    assert summary.rewards == (1.0, 1.0)
    assert (summary.complete, summary.informative, summary.wasted) == (True, False, True)


def test_a_group_that_has_not_ended_is_neither_complete_nor_wasted():
    summary = summary_of(2, [])

    assert (summary.complete, summary.wasted, summary.mean) == (False, False, None)
