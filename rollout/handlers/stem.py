"""Handler ``stem``: a question of science with choices or a short answer, which an agent may look up.

| member of the instance | is |
|---|---|
| `question`, `problem` or `prompt` | the question |
| `choices` or `options` | texts of the choices, or letter → text; without them the answer is short |
| `answer` or `ground_truth` | letter, number from 0, or text of the right choice; else the short answer, or a list of accepted ones |
| `tolerance` | of a number, relative; by default 0.01 |

The tool ``search`` (option ``tools``) asks the API that the option ``search_api`` names, through Tangram's quotas. The reward is 1 for
the right answer and 0 for another one; it is decided in this process, which runs nothing of an answer.

Rules
1. An answer chooses by the text of a choice, or by a letter that is alone, set apart by a sign, or followed by its choice's text.
2. Numbers are compared with the tolerance where both texts are a number with at most a unit; two different units are not equal. Other
   texts that have numbers are compared as texts and as mathematics.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from domain.rollouts import Stage
from rollout.handlers.agent_runs import AgentOptions, ask_agent, check_agent, final_facts
from rollout.handlers.answers import (
    final_answer,
    same_answer,
    short_answer,
    stripped,
    unit_of,
)
from rollout.handlers.base import AgentHandler, Job
from rollout.handlers.request_members import first_text, instance_of, options_of, refused

_QUESTION: Final = ("question", "problem", "prompt")
_CHOOSE: Final = (
    "Think step by step. End with a line `Answer: X`, where X is the letter of the right choice."
)
_SHORT: Final = (
    "Think step by step. End with a line `Answer: …` with the answer alone, as short as possible."
)
#: A letter that names a choice: alone, or set apart from what follows.
_LETTER: Final = re.compile(r"\(?([A-Z])(?:[).:]+|$|(?=,?\s+(?:because|since)\b))")
_OTHER_LETTER: Final = re.compile(r"(?<!\w)\(?([A-Z])(?:[).:,]|$)")
_NUMBER: Final = r"[-+]?(?:\d[\d,]*+\.?\d*+|\.\d++)(?:[eE][-+]?\d{1,3})?"
#: One word, or several behind a space: ``m/s^2``, ``kJ mol^-1``; "3d orbital" is no quantity.
_UNIT: Final = r"[%°]|(?:\\?[A-Za-z°µμΩ$%²³]++(?:\^?\{?-?\d\}?)?)"
_QUANTITY: Final = re.compile(
    rf"(?:[^\d]*?(?:[=≈~]|\bis|\babout|\bapproximately|\broughly))?\s*({_NUMBER})"
    rf"((?:{_UNIT})?|(?:\s+|(?=[/(]))(?:{_UNIT}|[\s/*·()])+)$"
)
_SCIENTIFIC: Final = re.compile(r"\s*(?:×|\*|\\times|\\cdot|x)\s*10\s*\^\s*\{?([-+]?\d{1,3})\}?")
_SHOWN: Final = 80

Answer = str | int | float


class StemMembers(msgspec.Struct, frozen=True):
    """Members of an instance."""

    question: str | None = None
    problem: str | None = None
    prompt: str | None = None
    choices: list[str] | dict[str, str] | None = None
    options: list[str] | dict[str, str] | None = None
    answer: Answer | list[Answer] | None = None
    ground_truth: Answer | list[Answer] | None = None
    tolerance: float = 0.01


class StemQuestion(NamedTuple):
    """A checked instance."""

    text: str
    #: Letter → text; empty: the answer is short.
    choices: Mapping[str, str]
    #: The right letter, or the accepted answers.
    accepted: Sequence[str]
    tolerance: float


class StemHandler(AgentHandler):
    """Answers a question of science."""

    async def init(self, job: Job) -> Mapping[str, Any] | None:
        """Check the instance."""
        stem_question(job)
        check_agent(job, options_of(job, AgentOptions))
        return None

    async def run(self, job: Job) -> Mapping[str, Any] | None:
        """Ask the model."""
        question = stem_question(job)
        listed = [f"{letter}. {text}" for letter, text in question.choices.items()]
        asked = "\n".join([question.text, *listed])
        system = _CHOOSE if question.choices else _SHORT
        ran = await ask_agent(job, options_of(job, AgentOptions), system, asked)
        return {**ran, "answer": final_answer(str(ran["answer"]))}

    async def eval(self, job: Job) -> Any:
        """Compare the answer."""
        question, answer = stem_question(job), str(job.value(Stage.RUN)["answer"])
        if not answer:
            return {"reward": 0.0, "reason": "there is no answer"}
        right = is_right(question, answer)
        why = f"{answer[:_SHOWN]!r}, {question.accepted[0][:_SHOWN]!r} is right"
        return {"reward": float(right), "reason": why}

    def final_result(self, job: Job) -> Mapping[str, Any] | None:
        """Give the answer."""
        return final_facts(job.value(Stage.RUN), ("answer", "end", "iterations"))


def stem_question(job: Job) -> StemQuestion:
    """Return the question of a rollout. Raises InvalidRequest, which names the member."""
    members = instance_of(job, StemMembers)
    text = first_text(members, _QUESTION)
    given = members.answer if members.answer is not None else members.ground_truth
    if given is None or given == [] or given == "":
        raise refused("instance", "answer", "is missing")
    if not 0 <= members.tolerance < 1:
        raise refused("instance", "tolerance", "give a number from 0 to 1")
    choices = _choices(members)
    if not choices:
        accepted = [str(each) for each in (given if isinstance(given, list) else [given])]
        return StemQuestion(text, {}, accepted, members.tolerance)
    letter = None if isinstance(given, list) else _letter_of(given, choices)
    if letter is None:
        problem = f"{str(given)[:_SHOWN]!r} is none of the choices {', '.join(choices)}"
        raise refused("instance", "answer", problem)
    return StemQuestion(text, choices, [letter], members.tolerance)


def is_right(question: StemQuestion, answer: str) -> bool:
    """Say whether an answer is right."""
    if question.choices:
        return chosen(answer, question.choices) == question.accepted[0]
    return any(_same_short(answer, each, question.tolerance) for each in question.accepted)


def chosen(answer: str, choices: Mapping[str, str]) -> str | None:
    """Return the letter that an answer chooses, by letter or by its text; None: it chooses none."""
    answer = answer.strip()
    if answer in choices:
        return answer
    if (letter := _named_by_text(answer, choices)) is not None:
        return letter
    match = _LETTER.match(answer)
    if match is None:  # the letter, and the text of its choice
        letter, _, rest = answer.partition(" ")
        return letter if letter in choices and _is_text(rest, choices[letter]) else None
    rest = answer[match.end() :]
    others = {other for other in _OTHER_LETTER.findall(rest) if other in choices}
    if match[1] in choices and (_is_text(rest, choices[match[1]]) or others <= {match[1]}):
        return match[1]
    return None


def _named_by_text(answer: str, choices: Mapping[str, str]) -> str | None:
    """Return the letter of the only choice whose text an answer is; None: there is none."""
    for same in (str.__eq__, _is_text):
        found = [letter for letter, text in choices.items() if same(answer, text.strip())]
        if found:
            return found[0] if len(found) == 1 else None
    return None


def _is_text(answer: str, text: str) -> bool:
    said = short_answer(answer.lstrip(" -–—:"))
    return bool(said) and said == short_answer(text)


def _choices(members: StemMembers) -> dict[str, str]:
    given = members.choices if members.choices is not None else members.options
    if not given:
        return {}
    if len(given) > len(string.ascii_uppercase):
        raise refused("instance", "choices", f"at most {len(string.ascii_uppercase)} choices")
    if isinstance(given, list):
        return dict(zip(string.ascii_uppercase, given, strict=False))
    for name in given:
        if name.upper() not in string.ascii_uppercase or len(name) != 1:
            raise refused("instance", f"choices[{name[:20]!r}]", "choices are named by letters")
    return {name.upper(): text for name, text in given.items()}


def _letter_of(given: Answer, choices: Mapping[str, str]) -> str | None:
    """Return the letter of the right choice: it is given by letter, text, or number from 0."""
    if isinstance(given, int) and 0 <= given < len(choices):
        return list(choices)[given]
    if isinstance(given, str) and given.strip().upper() in choices:
        return given.strip().upper()
    return chosen(str(given), choices)


def _same_short(answer: str, expected: str, tolerance: float) -> bool:
    right, said = _quantity(expected), _quantity(answer)
    if right is not None and said is not None:
        if right[1] and said[1] and right[1] != said[1]:
            return False
        return math.isclose(said[0], right[0], rel_tol=tolerance, abs_tol=1e-12)
    words = short_answer(answer)
    return bool(words) and (
        words == short_answer(expected) or same_answer(answer, expected) is True
    )


def _quantity(text: str) -> tuple[float, str] | None:
    """Return the number that a text is, and its unit; None: the text is something else."""
    text = re.sub(r"\\(?:text|mathrm|mbox|approx)(?![A-Za-z])|\\[,;:! ]|[{}$~]", " ", _plain(text))
    match = _QUANTITY.match(" ".join(text.split()))
    value = math.nan if match is None else _number(match[1])
    return None if match is None or math.isnan(value) else (value, unit_of(match[2]))


def _plain(text: str) -> str:
    """Return a text with numbers as programs write them."""
    text = re.sub(r"\^\{?\\circ\}?", "°", text)
    return _SCIENTIFIC.sub(r"e\1", " ".join(stripped(text).replace("−", "-").split()))


def _number(text: str) -> float:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return math.nan
