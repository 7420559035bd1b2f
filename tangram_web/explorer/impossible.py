"""Queries that can find nothing, named before they are run. Pure.

Only what holds for every row is named: two terms that exclude each other, and states that have no such
value. An empty answer for any other reason is no mistake.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from math import inf

from tangram_web.explorer.fields import NONE, FieldKind, Tab
from tangram_web.explorer.language import FilterTerm, Query
from tangram_web.explorer.values import Sign, Value

#: Fields that only a finished row has, by tab.
_OF_THE_END = {
    "actions": ("outcome", "exit", "reward"),
    "rollouts": ("outcome", "reward"),
}


def why_nothing(tab: Tab, query: Query, now: float) -> list[str]:
    """Return why a query can find nothing; empty if it may find something."""
    return [
        *_live_with_ends(tab, query),
        *_disjoint(query),
        *_no_overlap(query),
        *_empty_time(query, now),
    ]


def _live_with_ends(tab: Tab, query: Query) -> Iterator[str]:
    names = _OF_THE_END.get(tab.name, ())
    for state in (term for term in query.of("state") if not term.negated):
        if any(value.text == "finished" for value in state.values):
            continue
        for term in query.terms:
            ended = not term.negated and all(value.sign is not Sign.NONE for value in term.values)
            if term.field.name in names and ended:
                words = " or ".join(value.text for value in state.values)
                yield (
                    f"An unfinished {tab.one} ({words}) has no {term.field.name}: with {state}, only "
                    f"{term.field.name}:{NONE} finds anything."
                )


def _disjoint(query: Query) -> Iterator[str]:
    for one, other in combinations(_positive(query), 2):
        if one.field is other.field and _are_words(one) and _are_words(other):
            mine, others = (
                {(value.sign, value.text) for value in each.values} for each in (one, other)
            )
            if not mine & others:
                joined = f"{one.field.name}:{one.said},{other.said}"
                yield f"{one} and {other} exclude each other: write {joined} for either."


def _are_words(term: FilterTerm) -> bool:
    kinds = (FieldKind.CHOICE, FieldKind.TEXT)
    plain = all(value.sign in (Sign.IS, Sign.NONE) for value in term.values)
    return bool(term.field.name) and term.field.kind in kinds and plain


def _no_overlap(query: Query) -> Iterator[str]:
    """Name comparisons of one field that no number meets."""
    numbers = (FieldKind.NUMBER, FieldKind.DURATION)
    terms = [term for term in _positive(query) if term.field.kind in numbers]
    for one, other in combinations(terms, 2):
        if one.field is other.field and len(one.values) == len(other.values) == 1:
            low = max(_bounds(one.values[0])[0], _bounds(other.values[0])[0])
            high = min(_bounds(one.values[0])[1], _bounds(other.values[0])[1])
            absent = {one.values[0].sign, other.values[0].sign} & {Sign.NONE}
            if low > high or (absent and one.values != other.values):
                yield f"{one} and {other} exclude each other: leave out one of them."


def _bounds(value: Value) -> tuple[float, float]:
    match value.sign:
        case Sign.OVER | Sign.FROM:
            return value.number, inf
        case Sign.UNDER | Sign.TO:
            return -inf, value.number
        case Sign.RANGE:
            return value.number, value.upper
        case Sign.IS:
            return value.number, value.number
    return -inf, inf


def _empty_time(query: Query, now: float) -> Iterator[str]:
    for since in query.of("since"):
        for until in query.of("until"):
            if instant(since.values[0], now) >= instant(until.values[0], now):
                yield f"{since} does not begin before {until}: exchange their values."


def instant(value: Value, now: float) -> float:
    """Return the time of a value of ``since`` or ``until``, in seconds since the epoch."""
    return now - value.number if value.sign is Sign.AGE else value.number


def _positive(query: Query) -> list[FilterTerm]:
    return [term for term in query.terms if not term.negated]
