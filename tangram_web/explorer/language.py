"""The filter language: text to a typed query, and back. Pure.

    state:queued task:swe* exit:!=0 act:>5s since:1h -door:e2b fix

Rules
1. Terms are separated by blanks, and all of them must hold. ``field:a,b`` holds for ``a`` or ``b``,
   ``-field:a`` where ``field:a`` does not. A word without a field is the beginning of an id, a task or
   a trajectory.
2. Values with blanks or commas stand in quotes, in which ``\\`` quotes a quote.
3. Every mistake is reported, with its place, the reason and a cure; nothing is ignored in silence.
4. ``parse(tab, str(query))`` is ``query``.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from tangram_web.explorer.fields import Field, FieldKind, Tab
from tangram_web.explorer.values import Sign, UnreadableValue, Value, quote, read_value, write_value

#: Longest text, most terms, and most alternatives of a term.
MAX_TEXT: Final = 4000
MAX_TERMS: Final = 40
MAX_VALUES: Final = 100
#: Field of a word.
WORD: Final = Field(
    name="", kind=FieldKind.TEXT, says="the beginning of an id, a task or a trajectory"
)
_NAMED: Final = re.compile(r"([A-Za-z_]+):")


@dataclass(frozen=True)
class FilterTerm:
    """One condition; alternatives of one field."""

    field: Field
    values: tuple[Value, ...]
    negated: bool = False
    #: Place of its first character in the text.
    at: int = dataclasses.field(default=0, compare=False)

    def __str__(self) -> str:
        minus = "-" if self.negated else ""
        if not self.field.name:
            text = quote(self.values[0].text)
            return minus + (f'"{text}"' if _NAMED.match(text) else text)
        return f"{minus}{self.field.name}:{self.said}"

    @property
    def said(self) -> str:
        """The text of its values."""
        return ",".join(write_value(self.field, value) for value in self.values)


@dataclass(frozen=True)
class Query:
    """Terms that must all hold."""

    terms: tuple[FilterTerm, ...] = ()

    def __str__(self) -> str:
        return " ".join(map(str, self.terms))

    def of(self, name: str) -> tuple[FilterTerm, ...]:
        """Return the terms of a field."""
        return tuple(term for term in self.terms if term.field.name == name)

    def without(self, term: FilterTerm) -> Query:
        """Return the query without a term."""
        return Query(tuple(each for each in self.terms if each is not term))

    def with_only(self, term: FilterTerm) -> Query:
        """Return the query with a term in the place of all others of its field."""
        kept = [each for each in self.terms if each.field.name != term.field.name]
        return Query((*kept, term))


@dataclass(frozen=True)
class Mistake:
    """A term that cannot be read."""

    term: str
    at: int
    reason: str
    cure: str

    def __str__(self) -> str:
        return f"{self.term} (character {self.at + 1}): {self.reason}; {self.cure}"


class QueryError(ValueError):
    """A text that is no query; ``mistakes`` has all of them."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__(" · ".join(map(str, self.mistakes)))


def parse(tab: Tab, text: str) -> Query:
    """Return the query of ``text``. Raises QueryError."""
    if len(text) > MAX_TEXT:
        raise QueryError([_too_much(text, f"the filter has more than {MAX_TEXT} characters")])
    terms, mistakes = [], []
    for at, piece in _pieces(text):
        try:
            terms.append(_term(tab, piece, at))
        except UnreadableValue as error:
            mistakes.append(Mistake(_short(piece), at, error.reason, error.cure))
    if len(terms) > MAX_TERMS:
        mistakes.append(_too_much(text, f"the filter has more than {MAX_TERMS} terms"))
    if mistakes:
        raise QueryError(mistakes)
    return Query(tuple(terms))


def _too_much(text: str, reason: str) -> Mistake:
    return Mistake(_short(text), 0, reason, "write a shorter one")


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}…"


def _pieces(text: str) -> Iterator[tuple[int, str]]:
    """Yield the terms with their places; blanks in quotes separate nothing."""
    begun, quoted, at = -1, False, 0
    while at < len(text):
        letter = text[at]
        if letter.isspace() and not quoted:
            if begun >= 0:
                yield begun, text[begun:at]
            begun = -1
        elif begun < 0:
            begun = at
        if letter == '"':
            quoted = not quoted
        at += 2 if letter == "\\" and quoted else 1
    if begun >= 0:
        yield begun, text[begun:]


def _term(tab: Tab, piece: str, at: int) -> FilterTerm:
    negated = piece.startswith("-") and len(piece) > 1
    rest = piece[1:] if negated else piece
    named = _NAMED.match(rest)
    if named is None:
        return FilterTerm(WORD, (_word(rest),), negated, at)
    found = tab.field(named[1].lower())
    if found is None:
        raise UnreadableValue(
            f"{tab.name} have no filter {named[1]}", _instead(tab, named[1], rest)
        )
    if negated and found.kind is FieldKind.TIME:
        other = "until" if found.name == "since" else "since"
        raise UnreadableValue("a time cannot be negated", f"write {other}:{rest[named.end() :]}")
    values = tuple(
        read_value(found, value, quoted=quoted) for value, quoted in _values(rest[named.end() :])
    )
    if len(values) > 1 and found.kind is FieldKind.TIME:
        raise UnreadableValue("a time has one value", "leave out the others")
    if len(values) > MAX_VALUES:
        raise UnreadableValue(f"a term has at most {MAX_VALUES} values", "use fewer")
    return FilterTerm(found, values, negated, at)


def _word(text: str) -> Value:
    (word, quoted), *others = _values(text)
    if others:
        raise UnreadableValue("a word has no alternatives", "name a field, as in task:a,b")
    if "\0" in word:
        raise UnreadableValue("a text cannot hold the character U+0000", "leave it out")
    word = word if quoted else word.removesuffix("*")
    if not word:
        raise UnreadableValue("nothing to look for", "leave it out")
    return Value(Sign.BEGINS, word)


def _instead(tab: Tab, name: str, term: str) -> str:
    near = difflib.get_close_matches(name.lower(), [each.name for each in tab.fields], 1)
    if near:
        return f"did you mean {near[0]}:?"
    return (
        f'use one of {", ".join(each.name for each in tab.fields)}, or quote it: "{_short(term)}"'
    )


def _values(text: str) -> list[tuple[str, bool]]:
    """Split at commas outside of quotes; each value with whether it stands in quotes."""
    found: list[tuple[str, bool]] = []
    piece, quoted, inside, at = "", False, False, 0
    while at < len(text):
        letter = text[at]
        if letter == '"':
            if not inside and (piece or quoted):
                raise UnreadableValue("a quote in the middle of a value", "quote the whole value")
            quoted, inside = True, not inside
        elif inside and letter == "\\" and at + 1 < len(text):
            at += 1
            piece += text[at]
        elif letter == "," and not inside:
            found.append((piece, quoted))
            piece, quoted = "", False
        elif quoted and not inside:
            raise UnreadableValue("text after the closing quote", "end the value there")
        else:
            piece += letter
        at += 1
    if inside:
        raise UnreadableValue("the quote is not closed", 'add " at the end of the value')
    return [*found, (piece, quoted)]
