"""A reward is read from completed actions alone, and only with certainty."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.action import Outcome, RewardRule
from domain.ports import ExecResult, RunReport
from scheduler.runtime.node.order_executor import reward_of

EXIT_CODE = RewardRule("exit_code")
JSON = RewardRule("json", "score")


def a_report(stdout: str = "", exit_code: int | None = 0, truncated: bool = False) -> RunReport:
    result = ExecResult(exit_code, stdout, "", truncated)
    return RunReport(Outcome.COMPLETED, 1.0, result)


@pytest.mark.parametrize(("exit_code", "reward"), [(0, 1.0), (1, 0.0), (137, 0.0), (None, None)])
def test_exit_code_becomes_one_or_nothing(exit_code: int | None, reward: float | None) -> None:
    assert reward_of(EXIT_CODE, a_report(exit_code=exit_code)) == reward


@pytest.mark.parametrize(
    ("stdout", "path", "reward"),
    [
        ('noise\n{"score": 0.5}\n\n  \n', "score", 0.5),
        ('{"a": {"b": [1, {"c": 3}]}}', "a.b.1.c", 3.0),
        ("0.25", None, 0.25),
        ('{"score": -2}\r\n', "score", -2.0),
        ('{"score": true}', "score", None),
        ('{"score": "1"}', "score", None),
        ('{"score": NaN}', "score", None),
        ('{"score": 1e999}', "score", None),
        ('{"score": ' + "9" * 400 + "}", "score", None),
        ('{"other": 1}', "score", None),
        ('{"score": 1}\nnot json', "score", None),
        ("[" * 100_000, "score", None),
        ("[1]", "1", None),
        ("[1]", "²", None),
        ("", "score", None),
    ],
)
def test_json_is_read_from_the_last_line(
    stdout: str, path: str | None, reward: float | None
) -> None:
    assert reward_of(RewardRule("json", path), a_report(stdout)) == reward


def test_cut_output_has_no_last_line_to_read() -> None:
    assert reward_of(JSON, a_report('{"score": 1}', truncated=True)) is None


def test_without_a_rule_there_is_no_reward() -> None:
    assert reward_of(None, a_report()) is None


@given(
    st.sampled_from([outcome for outcome in Outcome if outcome is not Outcome.COMPLETED]),
    st.sampled_from([EXIT_CODE, JSON]),
    st.integers(0, 255),
)
def test_only_completed_actions_are_rewarded(
    outcome: Outcome, rule: RewardRule, exit_code: int
) -> None:
    result = ExecResult(exit_code, '{"score": 1}', "")
    assert reward_of(rule, RunReport(outcome, 1.0, result)) is None


@given(st.text(), st.text())
def test_no_output_breaks_the_reading_and_no_reward_is_infinite(stdout: str, path: str) -> None:
    reward = reward_of(RewardRule("json", path), a_report(stdout))
    assert reward is None or math.isfinite(reward)


@given(st.floats(allow_nan=False, allow_infinity=False), st.text())
def test_a_printed_number_is_read_back_unchanged(number: float, noise: str) -> None:
    line = json.dumps({"score": number})
    assert reward_of(JSON, a_report(f"{noise}\n{line}\n")) == number
