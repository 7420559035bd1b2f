"""Completion of a filter: names of fields, then their values with the number of rows that each finds.

Counts are of the query without what is being typed: they say what the list would have.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from tangram_web.explorer.conditions import parts_of
from tangram_web.explorer.facets import EXACT
from tangram_web.explorer.fields import NONE, Field, FieldKind, Tab
from tangram_web.explorer.impossible import why_nothing
from tangram_web.explorer.indexes import rows_by_id
from tangram_web.explorer.language import Query, QueryError, parse
from tangram_web.explorer.values import quote
from tangram_web.live.access import Sight
from tangram_web.records.selectors import NATIVE

MOST: Final = 12
_KEYS: Final = (FieldKind.CHOICE, FieldKind.TEXT)


def completions(tab: Tab, sight: Sight, text: str, typed: str, now: float) -> dict[str, Any]:
    """Return ``options`` (``text``, ``says``, ``count``), and the ``problem`` of what is typed."""
    try:
        query = parse(tab, text)
    except QueryError:
        query = Query()
    minus, bare = ("-", typed[1:]) if typed.startswith("-") else ("", typed)
    name, colon, head = bare.partition(":")
    field = tab.field(name) if colon else None
    options = (
        _names(tab, minus, bare)
        if field is None
        else _values(tab, sight, query, field, minus, head, now)
    )
    return {"options": options, "problem": _problem(tab, query, typed, now)}


def _names(tab: Tab, minus: str, head: str) -> list[dict[str, Any]]:
    return [
        {"text": f"{minus}{each.name}:", "says": each.says, "count": None}
        for each in tab.fields
        if each.name.startswith(head.lower())
    ]


def _values(
    tab: Tab, sight: Sight, query: Query, field: Field, minus: str, head: str, now: float
) -> list[dict[str, Any]]:
    before, comma, last = head.rpartition(",")
    counts = _counts(tab, sight, query, field, now) if field.kind in _KEYS or field.facet else None
    if field.kind in _KEYS and counts is not None:
        known = [*dict.fromkeys((*field.values, *(name for name, _ in counts.most_common())))]
    else:
        known = list(field.values)
    said = [value for value in known if value.startswith(last.strip('"'))][:MOST]
    if field.kind in _KEYS and counts is not None:
        said.sort(key=lambda value: -counts[value])
    notes = dict(zip(field.values, field.notes, strict=False))
    return [
        {"text": f"{minus}{field.name}:{before}{comma}{_quoted(field, value)}", "says": notes.get(value, ""),
         "count": _count(field, value, counts)}
        for value in said
    ]  # fmt: skip


def _quoted(field: Field, value: str) -> str:
    return quote(value) if field.kind is FieldKind.TEXT and value != NONE else value


def _count(field: Field, value: str, counts: Counter[str] | None) -> int | None:
    if counts is None:
        return None
    if field.kind in _KEYS:
        return counts[value]
    if value == "!=0":
        return sum(n for code, n in counts.items() if code not in (NONE, "0"))
    low, dots, high = value.partition("..")
    if dots:
        return sum(n for c, n in counts.items() if c != NONE and int(low) <= float(c) <= int(high))
    return counts[value]


def _counts(tab: Tab, sight: Sight, query: Query, field: Field, now: float) -> Counter[str] | None:
    """Count the values of a field among the latest rows that the query finds."""
    if not field.column or field.name in ("id", "waits", "lane"):
        return None
    found: Counter[str] = Counter()
    for part in parts_of(tab):
        rows = rows_by_id(tab, part, query, sight, now, EXACT).order_by("-pk")
        for value in rows.values_list(field.column, flat=True)[:EXACT]:
            found[_said(field, value)] += 1
    return found


def _said(field: Field, value: Any) -> str:
    if value is None:
        return NATIVE if field.name == "door" else NONE
    return str(value)


def _problem(tab: Tab, query: Query, typed: str, now: float) -> str:
    """Return why what is typed can find nothing; empty while it may, or is not a term yet."""
    field = tab.field(typed.strip("-:")) if typed.endswith(":") else None
    if field is not None and field.values:
        typed += field.values[0]  # which no value of these rows would be
    try:
        whole = parse(tab, f"{query} {typed}")
    except QueryError as error:
        ends = typed.endswith((":", ",", "-", ">", "<", "=", "!", ".")) or typed.count('"') % 2
        return "" if ends or ":" not in typed else str(error.mistakes[-1])
    return " ".join(why_nothing(tab, whole, now))
