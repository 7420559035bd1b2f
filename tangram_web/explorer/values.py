"""Values of filters: what the text after a colon selects, and its canonical text. Pure.

Rules
1. A value in quotes is compared as it stands: ``*``, ``none`` and signs mean nothing in it.
2. Durations are seconds; a number without a unit is seconds as well.
3. The canonical text of a value is read as the same value.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from tangram_web.explorer.fields import NONE, Field, FieldKind


class Sign(StrEnum):
    """How a row's value is compared."""

    IS = ""
    BEGINS = "*"
    NOT = "!="
    OVER = ">"
    FROM = ">="
    UNDER = "<"
    TO = "<="
    RANGE = ".."
    NONE = NONE
    #: Seconds before now.
    AGE = "age"


@dataclass(frozen=True)
class Value:
    """One alternative of a term."""

    sign: Sign
    #: Of texts and choices.
    text: str = ""
    #: Of numbers, durations, ages and times (seconds since the epoch).
    number: float = 0.0
    #: Upper end of a range, which belongs to it.
    upper: float = 0.0


class UnreadableValue(ValueError):
    """A value that its field cannot have: why, and what to write instead."""

    def __init__(self, reason: str, cure: str) -> None:
        super().__init__(f"{reason}: {cure}")
        self.reason = reason
        self.cure = cure


_SIGNS: Final = (Sign.NOT, Sign.FROM, Sign.TO, Sign.OVER, Sign.UNDER)
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_AMOUNT: Final = r"\d+(?:\.\d+)?(?:e[+-]?\d+)?"
_NUMBER: Final = re.compile(rf"-?{_AMOUNT}")
_PART: Final = re.compile(rf"({_AMOUNT})(ms|s|min|m|h|d)")
#: Largest number in a filter: columns of integers hold no more.
_LARGEST: Final = 2.0**62
#: Longest duration: ten years.
_LONGEST: Final = 10 * 366 * 86400.0
_EARLIEST, _LATEST = datetime(1970, 1, 2, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)


def read_value(field: Field, text: str, *, quoted: bool = False) -> Value:
    """Return what ``text`` selects of ``field``. Raises UnreadableValue."""
    if "\0" in text:
        raise UnreadableValue("a text cannot hold the character U+0000", "leave it out")
    if not text and not quoted:
        raise UnreadableValue(f"{field.name} has no value", f"write {field.kind}")
    if field.kind is FieldKind.TIME:
        return _time(field, text)
    if text == NONE and not quoted and (field.optional or field.kind is not FieldKind.TEXT):
        if not field.optional:
            raise UnreadableValue(f"every row has a {field.name}", "leave the term out")
        return Value(Sign.NONE)
    if field.kind is FieldKind.CHOICE:
        if text not in field.values:
            raise UnreadableValue(
                f"{field.name} is never {text[:40]!r}", f"use one of {', '.join(field.values)}"
            )
        return Value(Sign.IS, text)
    if field.kind is FieldKind.TEXT:
        return _text(text, quoted=quoted)
    return _amount(field, text)


def write_value(field: Field, value: Value) -> str:
    """Return the canonical text of ``value``."""
    if value.sign is Sign.NONE:
        return NONE
    if value.sign is Sign.AGE:
        return duration_text(value.number)
    if field.kind is FieldKind.TIME:
        return time_text(value.number)
    if field.kind is FieldKind.CHOICE:
        return value.text
    if field.kind is FieldKind.TEXT:
        return quote(value.text) if value.sign is Sign.IS else f"{value.text}*"
    write = duration_text if field.kind is FieldKind.DURATION else number_text
    if value.sign is Sign.RANGE:
        return f"{write(value.number)}..{write(value.upper)}"
    return f"{value.sign}{write(value.number)}"


def quote(text: str) -> str:
    """Return ``text`` as it is if that is unambiguous, else in quotes."""
    plain = text and text != NONE and "*" not in text and text[0] != "-"
    if plain and not re.search(r'[\s,"\\]', text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def number_text(number: float) -> str:
    """Return a number without a superfluous fraction."""
    return str(int(number)) if number == int(number) else repr(number)


def duration_text(seconds: float) -> str:
    """Return a duration in the largest unit that holds it exactly."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds and seconds % length == 0:
            return f"{int(seconds // length)}{unit}"
    thousands = seconds * 1000
    if 0 < seconds < 1 and thousands == int(thousands) and int(thousands) * 0.001 == seconds:
        return f"{int(thousands)}ms"
    return f"{number_text(seconds)}s"


def time_text(at: float) -> str:
    """Return seconds since the epoch as ISO 8601 in UTC."""
    moment = datetime.fromtimestamp(at, UTC)
    return moment.isoformat().replace("+00:00", "Z")


def seconds_of(text: str) -> float | None:
    """Return the seconds of a duration; None for any other text."""
    if _NUMBER.fullmatch(text):
        return float(text)
    total, at = 0.0, 0
    while part := _PART.match(text, at):
        total, at = total + float(part[1]) * _UNITS[part[2]], part.end()
    return total if at and at == len(text) else None


def _text(text: str, *, quoted: bool) -> Value:
    if quoted or "*" not in text:
        return Value(Sign.IS, text)
    head = text[:-1]
    if not text.endswith("*") or "*" in head:
        raise UnreadableValue(
            "a * can only stand at the end", f'write {text.partition("*")[0] or "text"}*, or quote it'
        )  # fmt: skip
    if re.search(r'[\s,"\\]', head):
        raise UnreadableValue("quotes and a * do not go together", "leave out one of them")
    return Value(Sign.BEGINS, head)


def _amount(field: Field, text: str) -> Value:
    low, dots, high = text.partition("..")
    if dots:
        value = Value(Sign.RANGE, number=_number(field, low), upper=_number(field, high))
        if value.number > value.upper:
            raise UnreadableValue("the range ends before it begins", f"write {high}..{low}")
        return value
    sign = next((each for each in _SIGNS if text.startswith(each)), Sign.IS)
    return Value(sign, number=_number(field, text.removeprefix(sign)))


def _number(field: Field, text: str) -> float:
    if field.kind is FieldKind.DURATION:
        found = seconds_of(text)
        most, noun = _LONGEST, "duration"
    else:
        found = float(text) if _NUMBER.fullmatch(text) else None
        most, noun = _LARGEST, "number"
    if found is None:
        raise UnreadableValue(f"{text[:40]!r} is not a {noun}", f"write {field.kind}")
    if not math.isfinite(found) or abs(found) > most:
        raise UnreadableValue(f"{text[:40]!r} is too large", "write a smaller one")
    return found + 0.0 if found else 0.0


def _time(field: Field, text: str) -> Value:
    age = seconds_of(text) if text[-1:].isalpha() and "T" not in text else None
    if age is not None:
        if not 0 <= age <= _LONGEST:
            raise UnreadableValue(f"{text[:40]!r} is too long ago", "write a shorter age")
        return Value(Sign.AGE, number=age)
    try:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        if not _EARLIEST <= moment <= _LATEST:
            raise UnreadableValue(
                f"{text[:40]!r} is outside the calendar", "write a year after 1970"
            )
    except UnreadableValue:
        raise
    except (ValueError, OverflowError):
        raise UnreadableValue(f"{text[:40]!r} is no time", f"write {field.kind}") from None
    return Value(Sign.IS, number=moment.timestamp())
