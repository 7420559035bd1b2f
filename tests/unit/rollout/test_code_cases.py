"""Test cases are read from the forms of data sets, and their answers compared where no program can reach them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from domain.errors import InvalidRequest
from rollout.handlers.code_cases import (
    CaseAnswer,
    ProgramCase,
    answers_of,
    batches,
    cases_of,
    is_right,
    same_text,
    same_value,
)

COLUMNS = {"inputs": ["1\n", "2\n"], "outputs": ["1\n", "4\n"]}
FUNCTIONAL = [
    {"input": "[1, 2]\n3", "output": "4", "testtype": "functional", "metadata": {"func_name": "f"}}
]


@pytest.mark.parametrize(
    "instance",
    [
        {"tests": [{"input": "1\n", "output": "1\n"}, {"input": "2\n", "output": "4\n"}]},
        {"input_output": COLUMNS},
        {"ground_truth": json.dumps(COLUMNS)},
        {"tests": json.dumps([{"input": i, "output": o} for i, o in zip(*COLUMNS.values(), strict=True)])},
    ],
)  # fmt: skip
def test_cases_of_standard_input(instance: dict[str, Any]) -> None:
    assert cases_of(instance) == ("", [("1\n", "1\n"), ("2\n", "4\n")])


def test_cases_of_functions() -> None:
    assert cases_of({"tests": FUNCTIONAL}) == ("f", [([[1, 2], 3], 4)])
    columns = {"fn_name": "g", "inputs": [[1]], "outputs": [[2]]}
    assert cases_of({"input_output": columns}) == ("g", [([1], [2])])


@pytest.mark.parametrize(
    ("instance", "said"),
    [
        ({}, "instance: tests: is missing"),
        ({"tests": "{"}, "instance: tests: is a text, and no JSON"),
        ({"tests": []}, "instance: tests: is missing"),
        ({"tests": 3}, "instance: tests: give a list"),
        ({"tests": [{"input": "1"}]}, "instance: tests[0]: give input and output"),
        ({"tests": [{"input": 1, "output": "1"}]}, "instance: tests[0]: input and output are texts"),
        ({"tests": {"inputs": ["1"], "outputs": []}}, "instance: tests.outputs: has 0 elements"),
        ({"tests": {"inputs": 1, "outputs": []}}, "instance: tests.inputs: give a list"),
        ({"tests": {"inputs": [["1"]], "outputs": [1], "fn_name": "a b"}}, "no name of a function"),
        ({"tests": {"inputs": ["x"], "outputs": [1], "fn_name": "f"}}, "instance: tests[0]: an argument"),
        ({"tests": [{**FUNCTIONAL[0], "metadata": {}}]}, "metadata.func_name or fn_name"),
        ({"tests": [{"input": "", "output": ""}] * 2001}, "at most 2000"),
    ],
)  # fmt: skip
def test_a_bad_instance_is_refused_with_its_member(instance: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        cases_of(instance)

    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("1 \n2\n\n", "1\n2", True),
        ("0.3333333333", "0.33333333", True),
        ("1", "1.0", True),
        ("1.0", "1", False),
        ("1 2", "1\n2", False),
        ("nan", "nan", True),
        ("inf", "1.0", False),
        ("100000000000000001", "100000000000000000", False),
        ("", "", True),
        ("1\r\n2\r\n", "1\n2\n", True),
        ("a\u2028b", "a\nb", False),
        ("a\x85b", "a\nb", False),
        ("a\u2028b", "a\u2028b", True),
    ],
)
def test_outputs_are_compared_by_lines_and_words(one: str, other: str, same: bool) -> None:
    assert same_text(one, other) is same


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ([1, [2.0]], [1, [2.0000000001]], True),
        (True, 1, False),
        ({"a": [1]}, {"a": [1]}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ([1], [1, 1], False),
        (None, None, True),
        ("1", 1, False),
        (10**400, 1.5, False),
        (1.5, 10**400, False),
        ([10**400, 1.5], [10**400, 1.5000000001], True),
    ],
)
def test_values_are_compared_as_json(one: Any, other: Any, same: bool) -> None:
    assert same_value(one, other) is same


def test_batches_hold_every_case_once_and_bound_what_one_action_answers() -> None:
    sizes = [10, 300_000, 10, 200_000, 200_000, *[10] * 300]
    cases = [ProgramCase("", "x" * size) for size in sizes]

    made = list(batches(cases))

    assert [number for numbers, _ in made for number in numbers] == list(range(len(cases)))
    assert all(most * len(numbers) <= 384 * 1024 or len(numbers) == 1 for numbers, most in made)
    assert all(len(cases[n].expected) < most for numbers, most in made for n in numbers)


def test_the_first_line_of_a_case_counts_and_a_case_without_one_is_wrong() -> None:
    output = '{"begun": true}\n{"case": 0, "how": "ended", "answer": "1"}\n{"case": 0, "how": "ended", "answer": "2"}\nrubbish\n'

    begun, answers = answers_of(output)

    assert begun
    assert is_right(answers[0], "1", called=False)
    assert not is_right(answers.get(1), "1", called=False)
    assert not is_right(CaseAnswer(0, "timeout", "1"), "1", called=False)
    assert not is_right(CaseAnswer(0, "ended", "no JSON"), 1, called=True)
    assert not is_right(CaseAnswer(0, "ended", "1" + "0" * 400), 1.5, called=True)


@pytest.mark.parametrize("sign", ["\x85", "\u2028", "\u2029"])
def test_an_answer_with_another_end_of_line_keeps_its_line(sign: str) -> None:
    line = json.dumps({"case": 0, "how": "ended", "answer": f"a{sign}b\n"}, ensure_ascii=False)

    _, answers = answers_of(f'{{"begun": true}}\n{line}\n')

    assert is_right(answers[0], f"a{sign}b", called=False)
    [case] = cases_of(
        {"input_output": {"fn_name": "f", "inputs": [f'"a{sign}b"\n2'], "outputs": ["1"]}}
    )[1]
    assert case.given == [f"a{sign}b", 2]
