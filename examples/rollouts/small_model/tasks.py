"""Three small tasks with a verifiable reward: sums, programs of two numbers, and questions of chemistry with a search.

Each task has instances, and a teacher: a script that plays a model which knows the form of an answer, and errs in about half of
the cases. A small model that imitates the teacher errs as often; the reward is what it can improve by.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

SEARCH_API: Final = "api:elements"
SEARCH_PORT: Final = 8910

#: Name → atomic number, period, melting point in kelvin.
ELEMENTS: Final[Mapping[str, tuple[int, int, int]]] = {
    "helium": (2, 1, 1), "lithium": (3, 2, 454), "carbon": (6, 2, 3823), "oxygen": (8, 2, 54),
    "neon": (10, 2, 25), "sodium": (11, 3, 371), "aluminium": (13, 3, 933), "sulfur": (16, 3, 388),
    "argon": (18, 3, 84), "calcium": (20, 4, 1115), "iron": (26, 4, 1811), "nickel": (28, 4, 1728),
    "copper": (29, 4, 1358), "zinc": (30, 4, 693), "silver": (47, 5, 1235), "tin": (50, 5, 505),
    "iodine": (53, 5, 387), "tungsten": (74, 6, 3695), "gold": (79, 6, 1337), "lead": (82, 6, 601),
}  # fmt: skip
PROPERTIES: Final = ("atomic number", "period", "melting point in kelvin")

#: What a program does with two numbers: phrase → expression and value.
PROGRAMS: Final[Mapping[str, tuple[str, Callable[[int, int], int]]]] = {
    "the sum": ("a + b", lambda a, b: a + b),
    "the first minus the second": ("a - b", lambda a, b: a - b),
    "the product": ("a * b", lambda a, b: a * b),
    "the larger": ("max(a, b)", max),
    "the smaller": ("min(a, b)", min),
    "the distance": ("abs(a - b)", lambda a, b: abs(a - b)),
    "the sum of the squares": ("a * a + b * b", lambda a, b: a * a + b * b),
    "the remainder": ("a % b", lambda a, b: a % b),
}
_FORMS: Final = (
    "Read two numbers and print {}.",
    "Print {} of two numbers.",
    "Given two numbers, print {}.",
)
_CASES: Final = ((7, 3), (2, 9), (15, 4), (6, 6), (1, 12))
#: Of a summand.
_MOST: Final = 12
_SLIPS: Final = (-2, -1, 1, 2)


class Task(NamedTuple):
    """What the small model learns."""

    name: str
    handler: str
    options: Mapping[str, Any]
    #: The rollouts' environment; None: none is needed.
    environment: Mapping[str, Any] | None
    #: Tokens of one answer, at most.
    max_tokens: int
    instance: Callable[[random.Random], dict[str, Any]]
    #: From the last turn's text and the number of answers before it to the teacher's answer.
    teacher: Callable[[str, int, random.Random], str]


def _sum(chance: random.Random) -> dict[str, Any]:
    a, b = chance.randint(1, _MOST), chance.randint(1, _MOST)
    return {"problem": f"What is {a} + {b}?", "answer": a + b}


def _add(last: str, turn: int, chance: random.Random) -> str:
    a, b = map(int, re.findall(r"\d+", last)[-2:])
    slip = chance.choice(_SLIPS) if chance.random() < 0.6 else 0
    return f"\\boxed{{{a + b + slip}}}"


def _program(chance: random.Random) -> dict[str, Any]:
    phrase = chance.choice(list(PROGRAMS))
    value = PROGRAMS[phrase][1]
    return {
        "question": chance.choice(_FORMS).format(phrase),
        "tests": [{"input": f"{a} {b}\n", "output": str(value(a, b))} for a, b in _CASES],
    }


def _write(last: str, turn: int, chance: random.Random) -> str:
    phrase = max((each for each in PROGRAMS if each in last), key=len)
    if chance.random() < 0.6:
        phrase = chance.choice(list(PROGRAMS))
    code = f"a, b = map(int, input().split())\nprint({PROGRAMS[phrase][0]})"
    return f"```python\n{code}\n```"


def _question(chance: random.Random) -> dict[str, Any]:
    name, place = chance.choice(list(ELEMENTS)), chance.randrange(len(PROPERTIES))
    return {"question": f"What is the {PROPERTIES[place]} of {name}?", "answer": ELEMENTS[name][place], "tolerance": 0.0}  # fmt: skip


def _look_up(last: str, turn: int, chance: random.Random) -> str:
    if turn == 0:
        name = next(each for each in ELEMENTS if f"of {each}?" in last)
        if chance.random() < 0.5:
            return _call("web_search", query=name)
        return _call("finish", answer=str(chance.choice(list(ELEMENTS.values()))[chance.randrange(3)]))  # fmt: skip
    values = re.findall(r"is (\d+)", last) or ["0"]
    return _call("finish", answer=chance.choice(values))


def _call(tool: str, **arguments: str) -> str:
    said = json.dumps({"name": tool, "arguments": arguments})
    return f"<tool_call>\n{said}\n</tool_call>"


def found_of(query: str) -> list[dict[str, str]]:
    """Return what the search finds: one sentence for each element that the query names."""
    return [
        {
            "title": name,
            "url": f"elements:{name}",
            "content": " ".join(
                f"The {PROPERTIES[place]} of {name} is {value}."
                for place, value in enumerate(values)
            ),
        }
        for name, values in ELEMENTS.items()
        if name in query.lower().split()
    ]


_SHORT: Final = {"system_prompt": "Answer."}
_SEARCHING: Final = {**_SHORT, "tools": ["search"], "search_api": SEARCH_API, "max_iterations": 3}
TASKS: Final[Mapping[str, Task]] = {
    each.name: each
    for each in (
        Task("math", "math", _SHORT, None, 16, _sum, _add),
        Task("code", "code", _SHORT, {}, 64, _program, _write),
        Task(
            "stem",
            "stem",
            {**_SHORT, "tools": ["search"], "search_api": SEARCH_API, "max_iterations": 3},
            None,
            64,
            _question,
            _look_up,
        ),
    )
}
