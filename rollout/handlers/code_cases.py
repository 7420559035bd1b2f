"""Test cases of programs: read from the forms that data sets have, run in batches, and compared outside of the environment.

| form | member |
|---|---|
| ``[{"input": …, "output": …}, …]``; with ``testtype: functional`` of LiveCodeBench | `tests` |
| ``{"inputs": […], "outputs": […], "fn_name": …}`` of APPS, TACO, DeepCoder | `tests`, `input_output` or `ground_truth` |

Each may be JSON in a text. With a function, an input is the list of its arguments, or a text with one JSON value on each line.

Rules
1. Right answers never enter the environment. A program that changes what is said of other cases gains nothing but wrong answers.
2. Texts are compared line by line without trailing space, then word by word, where numbers with a fraction may differ by 1e-6.
   Values are compared as JSON, where tuples are lists.
3. A case without a line of its own is wrong: the program ended what ran it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from rollout.handlers.request_members import from_json, refused

#: Of one case's answer, beyond the longest right one.
_SLACK_BYTES: Final = 4096
#: Of all answers of one action; what a log stores of an observation is bounded.
_BATCH_BYTES: Final = 384 * 1024
MAX_CASES: Final = 2000
_MEMBERS: Final = ("tests", "input_output", "ground_truth")
_NEAR: Final = 1e-6
_FUNCTIONAL: Final = "functional"


class ProgramCase(NamedTuple):
    """One case. ``given`` is text, or the arguments of a function."""

    given: Any
    expected: Any


class ProgramCases(NamedTuple):
    """All cases of an instance."""

    function: str
    cases: Sequence[ProgramCase]


class CaseAnswer(msgspec.Struct, frozen=True):
    """What a program answered in one case."""

    case: int = -1
    how: str = ""
    answer: str = ""
    said: str = ""


def cases_of(instance: Mapping[str, Any]) -> ProgramCases:
    """Return the cases of an instance. Raises InvalidRequest, which names the member."""
    member = next((name for name in _MEMBERS if instance.get(name)), None)
    if member is None:
        raise refused("instance", _MEMBERS[0], f"is missing: give one of {', '.join(_MEMBERS)}")
    stated = from_json(instance[member], member)
    if isinstance(stated, dict):
        function, cases = _of_columns(stated, member)
    elif isinstance(stated, list):
        function, cases = _of_rows(stated, member, instance)
    else:
        raise refused("instance", member, "give a list of cases, or inputs and outputs")
    if not cases:
        raise refused("instance", member, "has no case")
    if len(cases) > MAX_CASES:
        raise refused("instance", member, f"has {len(cases)} cases, at most {MAX_CASES} are run")
    if function and not function.isidentifier():
        raise refused("instance", member, f"{function[:40]!r} is no name of a function")
    checked = [_checked(case, function, f"{member}[{n}]") for n, case in enumerate(cases)]
    return ProgramCases(function, checked)


def batches(cases: Sequence[ProgramCase]) -> Iterator[tuple[range, int]]:
    """Yield numbers of cases that one action runs, and the most bytes that each may answer."""
    begin = 0
    while begin < len(cases):
        end, most = begin, 0
        while end < len(cases):
            longest = max(most, _size(cases[end].expected))
            if end > begin and (longest + _SLACK_BYTES) * (end + 1 - begin) > _BATCH_BYTES:
                break
            end, most = end + 1, longest
        yield range(begin, end), most + _SLACK_BYTES
        begin = end


def answers_of(output: str) -> tuple[bool, dict[int, CaseAnswer]]:
    """Return whether the cases were begun, and the first answer of each."""
    begun, found = False, dict[int, CaseAnswer]()
    for line in output.split("\n"):  # other ends of lines are part of an answer
        if line.strip() == '{"begun": true}':
            begun = True
            continue
        try:
            answer = msgspec.json.decode(line, type=CaseAnswer)
        except msgspec.MsgspecError:
            continue
        found.setdefault(answer.case, answer)
    return begun, found


def is_right(answer: CaseAnswer | None, expected: Any, *, called: bool) -> bool:
    """Say whether the answer of a case is the right one."""
    if answer is None or answer.how != "ended":
        return False
    if not called:
        return same_text(answer.answer, str(expected))
    try:
        return same_value(json.loads(answer.answer), expected)
    except (ValueError, RecursionError):
        return False


def same_text(one: str, other: str) -> bool:
    """Say whether two outputs are the same (rule 2)."""
    first, second = _lines(one), _lines(other)
    if first == second:
        return True
    if len(first) != len(second):
        return False
    return all(
        len(left) == len(right) and all(map(_same_word, left, right))
        for left, right in zip(map(str.split, first), map(str.split, second), strict=True)
    )


def same_value(one: Any, other: Any) -> bool:
    """Say whether two JSON values are the same (rule 2)."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        exact = isinstance(one, int) and isinstance(other, int)
        return one == other or (not exact and _near(one, other))
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_value, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_value(one[key], other[key]) for key in one)
    return bool(one == other)


def _of_columns(stated: Mapping[str, Any], member: str) -> tuple[str, list[ProgramCase]]:
    inputs, outputs = stated.get("inputs"), stated.get("outputs")
    for name, column in (("inputs", inputs), ("outputs", outputs)):
        if not isinstance(column, list):
            raise refused("instance", f"{member}.{name}", "give a list")
    assert isinstance(inputs, list)
    assert isinstance(outputs, list)
    if len(inputs) != len(outputs):
        problem = f"has {len(outputs)} elements, and inputs has {len(inputs)}"
        raise refused("instance", f"{member}.outputs", problem)
    return str(stated.get("fn_name") or ""), list(map(ProgramCase, inputs, outputs))


def _of_rows(
    stated: Sequence[Any], member: str, instance: Mapping[str, Any]
) -> tuple[str, list[ProgramCase]]:
    cases, function = [], str(instance.get("fn_name") or "")
    for number, row in enumerate(stated):
        if not isinstance(row, dict) or "input" not in row or "output" not in row:
            raise refused("instance", f"{member}[{number}]", "give input and output")
        if row.get("testtype") == _FUNCTIONAL and not function:
            metadata = row.get("metadata") or instance.get("metadata") or {}
            function = str(from_json(metadata, "metadata").get("func_name") or "")
            if not function:
                problem = "is functional: metadata.func_name or fn_name names the function"
                raise refused("instance", f"{member}[{number}]", problem)
        cases.append(ProgramCase(row["input"], row["output"]))
    return function, cases


def _checked(case: ProgramCase, function: str, member: str) -> ProgramCase:
    """Return a case in the form that is run: texts, or arguments and a value."""
    given, expected = case
    if not function:
        given, expected = _joined(given), _joined(expected)
        if not isinstance(given, str) or not isinstance(expected, str):
            raise refused("instance", member, "input and output are texts")
        return ProgramCase(given, expected)
    try:
        if isinstance(given, str):
            given = [json.loads(line) for line in given.split("\n") if line.strip()]
        if isinstance(expected, str):
            expected = _value(expected)
    except (ValueError, RecursionError) as error:
        raise refused("instance", member, f"an argument is no JSON: {error}") from None
    if not isinstance(given, list):
        raise refused("instance", member, "the input of a function is a list of arguments")
    return ProgramCase(given, expected)


def _value(text: str) -> Any:
    """Return the value of a text: JSON, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _joined(value: Any) -> Any:
    """Return the lines of a list as one text."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    return value


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _same_word(one: str, other: str) -> bool:
    if one == other:
        return True
    if not any(sign in other for sign in ".eE"):
        return False
    try:
        return _near(float(one), float(other))
    except ValueError:
        return False


def _near(one: float, other: float) -> bool:
    try:
        return math.isclose(one, other, rel_tol=_NEAR, abs_tol=_NEAR)
    except OverflowError:  # an integer that is larger than any float
        return False


def _size(expected: Any) -> int:
    text = expected if isinstance(expected, str) else json.dumps(expected)
    return len(text.encode("utf-8", "replace"))
