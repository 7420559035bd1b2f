"""The final answer of a text is found, and compared as mathematics has it."""

from __future__ import annotations

import time

import pytest

from rollout.handlers.answers import final_answer, same_answer, short_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"So it is \boxed{42}.", "42"),
        (r"\boxed{1} no, \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\text{red}}", "red"),
        ("Reasoning.\nAnswer: $12$.", "12"),
        ("The final answer is: **7**", "7"),
        ("#### 1,200", "1,200"),
        ("Thus the answer is 3 apples.", "3 apples"),
        ("<answer> B </answer>", "B"),
        ("a\nb\n\nlast line\n", "last line"),
        ("Answer:\n42", "42"),
        (r"\boxed{\boxed{5}}", "5"),
        ("<answer>1</answer> <answer>2</answer>", "2"),
        ('"**`$7$`**".', "7"),
        (r"cut \boxed{1} and \boxed{2", "1"),
        ("", ""),
    ],
)
def test_the_last_answer_of_a_text_counts(text: str, answer: str) -> None:
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("42", "42.0"),
        ("x = 5", "5"),
        ("(1, 2)", r"\left(1,2\right)"),
        (r"\{2, 1\}", r"\{1,2\}"),
        ("1, 2", "2, 1"),
        ("12 cm", "12"),
        ("12", r"12\text{ square meters}"),
        ("12 m^2", r"12\text{ square meters}"),
        ("5 seconds", r"5\text{ s}"),
        (r"12\text{ cm}^2", "12"),
        ("50%", "50"),
        ("$1,000$", "1000"),
        ("Tuesday", "tuesday"),
        (r"\frac12, \frac13", "0.5, 1/3"),
        ("[0, 1)", "[0,1)"),
        ("(x+1)(x-1)", "x^2-1"),
    ],
)
def test_answers_that_are_the_same(answer: str, expected: str) -> None:
    assert same_answer(answer, expected) is True


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("41", "42"),
        ("", "0"),
        ("41, 42", "42"),
        ("41 or 42", "42"),
        ("(2, 1)", "(1, 2)"),
        ("(0, 1)", "[0, 1]"),
        ("1, 2, 2", "1, 2"),
        ("arc", "car"),
        ("42 " * 500, "42"),
        ("5 km", "5 m"),
        ("5 hours", "5 minutes"),
        (r"5\text{ cm}^2", r"5\text{ cm}^3"),
        ("3 cm, 4 cm", "3 cm, 4 m"),
        (r"e^{-25}", "0"),
    ],
)
def test_answers_that_differ(answer: str, expected: str) -> None:
    assert not same_answer(answer, expected)


@pytest.mark.parametrize(
    "text",
    [
        "$" * 1999 + "a", "`" * 1999 + "a", "*" * 1999 + "a", '"' * 2000, ".," * 1000, "1" + " " * 1998 + "1",
        "\\boxed{" * 2857, "answer" + " " * 19_000, "x answer is" + "\n" * 19_000, "<answer>" * 2500, "#" * 20_000,
    ],
)  # fmt: skip
def test_degenerate_repetition_takes_no_time(text: str) -> None:
    begin = time.process_time()

    assert not same_answer(final_answer(text), "5")
    assert time.process_time() - begin < 0.1


def test_a_hedge_of_every_answer_is_wrong() -> None:
    every = ", ".join(str(number) for number in range(100))

    assert not same_answer(every, "42")
    assert not same_answer(f"x = {every}", "42")


def test_short_answers_have_no_articles_case_and_punctuation() -> None:
    assert short_answer(' The "Krebs cycle".') == short_answer("krebs cycle")
