"""Answers: what a model says at the end of its text, and whether it is the right one.

    answer = final_answer(text)                    # of \\boxed{…}, "Answer: …", "#### …", else the last line
    same_answer(answer, "\\frac{3}{4}")             # True, False; None: it has to be decided elsewhere

Rules
1. The last answer counts: a text with several has changed its mind.
2. Answers are compared as texts without layout, as lists of parts, and as expressions (`rollout.handlers.expressions`). Nothing of
   an answer is run.
3. An answer that lists several candidates where one is expected is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from rollout.handlers.expressions import equal

#: Of a text that is searched for an answer, from its end.
_SEARCHED: Final = 20_000
#: Of an answer.
MAX_ANSWER_CHARACTERS: Final = 2000
_BOX: Final = re.compile(r"\\(?:boxed|fbox)\s*+\{|[{}]")
_SAID: Final = re.compile(
    r"(?:^|\n)[ \t>*_#]*+(?:the\s++)?(?:final\s++)?answer[*_]*+(?:\s++is)?+[*_]*+\s*+[:=]?+\s*+([^\n]+)"
    r"|####\s*+([^\n]+)",
    re.IGNORECASE,
)
_IN_SENTENCE: Final = re.compile(r"\banswer\s++is\s*+:?+\s*+([^\n]+)", re.IGNORECASE)
_TAG: Final = re.compile(r"<(/?)answer>", re.IGNORECASE)
#: Begin and end of what wraps an answer.
_WRAPPINGS: Final = (
    *((f"\\{name}{{", "}") for name in ("text", "mathrm", "mathbf", "textbf", "boxed")),
    (r"\(", r"\)"), (r"\[", r"\]"), *((begin, end) for begin in '"“\'' for end in '"”\''),
)  # fmt: skip
#: ``x =`` before a value.
_NAMED: Final = re.compile(r"^[A-Za-z]\w*(?:\([A-Za-z]\))?\s*(?:=|\\in)\s*(?=\S)")
#: Names of units that a text may have behind a number → the unit.
_UNITS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("degree", "degrees"), "°"), **dict.fromkeys(("dollar", "dollars"), "$"),
    **dict.fromkeys(("unit", "units"), "unit"), "cm": "cm", "mm": "mm", "km": "km", "kg": "kg", "m": "m", "s": "s",
    **dict.fromkeys(("hour", "hours"), "h"), **dict.fromkeys(("minute", "minutes"), "min"),
    **dict.fromkeys(("second", "seconds"), "s"), **dict.fromkeys(("mile", "miles"), "mile"),
    **dict.fromkeys(("inch", "inches"), "in"), **dict.fromkeys(("foot", "feet"), "ft"),
    **dict.fromkeys(("meter", "meters", "metre", "metres"), "m"),
    **dict.fromkeys(("centimeter", "centimeters", "centimetre", "centimetres"), "cm"),
    **dict.fromkeys(("millimeter", "millimeters", "millimetre", "millimetres"), "mm"),
    **dict.fromkeys(("kilometer", "kilometers", "kilometre", "kilometres"), "km"),
    **dict.fromkeys(("kilogram", "kilograms"), "kg"), **dict.fromkeys(("gram", "grams"), "g"),
}  # fmt: skip
#: The unit that a text ends with.
_UNIT: Final = re.compile(
    r"(?<=[\d)}])\s*+((?:(?:\\\s++)?\\(?:text|mathrm|mbox)\{[^{}]*\}|(?:"
    + "|".join(sorted(_UNITS, key=len, reverse=True))
    + r")\b)(?:\^\{?\d\}?)?)$"
)
_POWERS: Final = (("square ", "^2"), ("cubic ", "^3"), ("sq ", "^2"))
_WORDS: Final = re.compile(r"[A-Za-z][A-Za-z\s'-]+")
_OPEN, _CLOSE = "([{", ")]}"


def final_answer(text: str) -> str:
    """Return the answer that a text ends with; empty where there is none."""
    text = text[-_SEARCHED:]
    if (boxed := _last_boxed(text)) is not None:
        return stripped(boxed)
    if (tagged := _last_tagged(text)) is not None:
        return stripped(tagged)
    for pattern in (_SAID, _IN_SENTENCE):
        if found := list(pattern.finditer(text)):
            return stripped(next(group for group in found[-1].groups() if group is not None))
    lines = [line for line in text.splitlines() if line.strip()]
    return stripped(lines[-1]) if lines else ""


def stripped(answer: str) -> str:
    """Return an answer without what wraps it: formula signs, emphasis, quotes, a full stop."""
    answer = answer[:MAX_ANSWER_CHARACTERS].strip()
    while True:
        before = answer
        answer = _unwrapped(_without_stop(answer).strip())
        if answer == before:
            return answer


def same_answer(answer: str, expected: str) -> bool | None:
    """Say whether an answer is the expected one; None: the expected one is an expression that is not decided here."""
    one, unit = _plain(answer)
    other, wanted_unit = _plain(expected)
    if not one or (unit and wanted_unit and unit != wanted_unit):
        return False
    if folded(one) == folded(other):
        return True
    if _WORDS.fullmatch(other):  # letters of a word are no product
        return False
    parts, wanted = _parts(one), _parts(other)
    if len(parts) != len(wanted) or _brackets(one) != _brackets(other):
        return False
    if len(wanted) > 1:
        return _same_parts(parts, wanted, ordered=_brackets(other) not in ("{}", ""))
    return _same_part(one, other)


def unit_of(text: str) -> str:
    """Return a unit in one form: names as symbols, without layout; empty where there is none."""
    text = re.sub(r"\\(?:text|mathrm|mbox)\s*|\\[,;:! ]|[{}$~]", " ", text)
    text = text.replace("²", "^2").replace("³", "^3").replace("−", "-")
    text = " ".join(text.split())
    for word, power in _POWERS:
        if text.casefold().startswith(word):
            text = text[len(word) :] + power
    words = re.split(r"([^A-Za-z]+)", text)
    known = (_UNITS.get(word.casefold(), word) for word in words)
    plain = re.sub(r"[\s*·^\\]+", "", "".join(known)).rstrip(".,;")
    # Milli and mega differ by their case alone.
    return plain[:1] + plain[1:].casefold() if plain[:1] in "mM" else plain.casefold()


def folded(text: str) -> str:
    """Return a text without case, spaces and layout."""
    text = re.sub(r"\\(?:left|right|displaystyle|[,;:! ])", "", text)
    text = re.sub(r"\\[dt]frac", r"\\frac", text)
    return re.sub(r"[\s$*_`]+", "", text).casefold().rstrip(".")


def short_answer(text: str) -> str:
    """Return a short text in words: without case, accents aside, punctuation, and articles."""
    words = re.sub(r"[^\w\s.+-]", " ", stripped(text).casefold()).split()
    kept = [word.strip(".") for word in words if word not in ("a", "an", "the")]
    return " ".join(word for word in kept if word)


def _last_boxed(text: str) -> str | None:
    """Return the content of the last complete box."""
    opened, found = list[re.Match[str]](), (-1, -1)
    for match in _BOX.finditer(text):
        if match[0] != "}":
            opened.append(match)
        elif opened and len((begin := opened.pop())[0]) > 1:
            found = max(found, (begin.end(), match.start()))
    return None if found[0] < 0 else text[slice(*found)]


def _last_tagged(text: str) -> str | None:
    """Return the content of the last complete ``<answer>``."""
    begin, found = None, None
    for match in _TAG.finditer(text):
        if not match[1]:
            begin = match.end()
        elif begin is not None:
            begin, found = None, text[begin : match.start()]
    return found


def _without_stop(answer: str) -> str:
    """Return an answer without the points and commas at its end; ``\\,`` is layout."""
    kept = answer.rstrip(".,;")
    return answer[: len(kept) + 1] if kept.endswith("\\") else kept


def _unwrapped(answer: str) -> str:
    """Return an answer without one layer of what wraps it."""
    for begin, end in _WRAPPINGS:
        if (
            len(answer) >= len(begin) + len(end)
            and answer.startswith(begin)
            and answer.endswith(end)
        ):
            answer = answer[len(begin) : -len(end)].strip()
    for sign in "$`":
        if len(answer) > 1 and answer[0] == answer[-1] == sign:
            answer = answer.strip(sign).strip()
    return answer.strip("*").strip() if answer.startswith("*") else answer


def _plain(answer: str) -> tuple[str, str]:
    """Return an answer without name and unit, and the unit."""
    answer = stripped(answer)
    answer = re.sub(r"\\(?:left|right)\b\s*", "", answer)
    answer = answer.replace(r"\{", "{").replace(r"\}", "}") if answer.startswith(r"\{") else answer
    answer = _NAMED.sub("", answer)
    unit = _UNIT.search(answer)
    if unit is None:
        return stripped(answer), ""
    return stripped(answer[: unit.start()]), unit_of(unit[1])


def _brackets(text: str) -> str:
    """Return the brackets around all of a text."""
    if len(text) < 2 or text[0] not in _OPEN or text[-1] not in _CLOSE:
        return ""
    depth = 0
    for at, sign in enumerate(text):
        depth += (sign in _OPEN) - (sign in _CLOSE)
        if depth == 0 and at < len(text) - 1:
            return ""
    return text[0] + text[-1] if "," in text else ""


def _parts(text: str) -> list[str]:
    """Return what commas outside of brackets separate. Commas of thousands separate nothing."""
    inner = text[1:-1] if _brackets(text) else text
    if inner is text:
        inner = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", inner)
    parts, depth, begin = [], 0, 0
    for at, sign in enumerate(inner):
        depth += (sign in _OPEN) - (sign in _CLOSE)
        if sign == "," and depth == 0:
            parts.append(inner[begin:at])
            begin = at + 1
    return [part.strip() for part in (*parts, inner[begin:])]


def _same_parts(parts: Sequence[str], wanted: Sequence[str], *, ordered: bool) -> bool | None:
    if ordered:
        found = [_same_part(one, other) for one, other in zip(parts, wanted, strict=True)]
        return False if False in found else (None if None in found else True)
    left = list(wanted)
    for part in parts:
        match = next((each for each in left if _same_part(part, each)), None)
        if match is None:
            return False
        left.remove(match)
    return True


def _same_part(one: str, other: str) -> bool | None:
    if folded(one) == folded(other):
        return True
    found = equal(one, other)
    if found is False and one.rstrip().endswith("%") != other.rstrip().endswith("%"):
        return equal(one.rstrip("\\% "), other.rstrip("\\% "))
    return found
