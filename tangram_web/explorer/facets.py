"""Counts of a query: how many rows it finds, the values of its facets, and the sample of its heatmap.

Rules
1. Rows are counted one by one up to `EXACT`. With more, the number is ``10,000+``, and facets are those
   of the latest `EXACT` rows: the page says so.
2. One reading gives all of it, so that numbers beside each other agree.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from tangram_web.explorer.conditions import parts_of
from tangram_web.explorer.fields import NONE, Field, FieldKind, Tab
from tangram_web.explorer.indexes import rows_by_id
from tangram_web.explorer.language import FilterTerm, Query
from tangram_web.explorer.values import Sign, Value, write_value
from tangram_web.live.access import Sight
from tangram_web.records.selectors import NATIVE

#: Rows that are counted exactly.
EXACT: Final = 10_000
#: Values of a facet.
MOST_VALUES: Final = 8
#: Columns of the heatmap.
_DURATIONS: Final = ("submitted_at", "act_seconds")


@dataclass(frozen=True)
class FacetValue:
    """One value of a facet."""

    text: str
    count: int
    #: Filter that selects it.
    term: str
    #: The query has this filter.
    chosen: bool
    #: The whole filter when it is pressed: with it, or without it where it is chosen.
    query: str
    #: Share of the largest count, in percent.
    share: int = 0


@dataclass(frozen=True)
class Facet:
    """Values of one field."""

    field: Field
    values: list[FacetValue]
    #: Values that are not listed.
    more: int = 0


@dataclass(frozen=True)
class Counted:
    """What a query finds, in numbers."""

    total: int
    #: ``total`` is a lower bound, and all else is of the latest rows.
    more: bool
    facets: list[Facet] = field(default_factory=list)
    #: When actions were submitted and how long they took, of finished ones.
    durations: list[tuple[float, float]] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The number as the page shows it."""
        return f"{self.total:,}{'+' if self.more else ''}"


def count_rows(tab: Tab, query: Query, sight: Sight, now: float) -> Counted:
    """Count the rows that a query finds, and the values of their facets."""
    columns = [each.column for each in tab.facets]
    timed = tab.name == "actions"
    rows: list[tuple[Any, ...]] = []
    for part in parts_of(tab):
        if len(rows) <= EXACT:
            # Unfinished rows first: they are few.
            selected = rows_by_id(tab, part, query, sight, now, EXACT + 1).order_by("-pk")
            wanted = [*columns, *(_DURATIONS if timed else ())]
            rows += selected.values_list(*wanted)[: EXACT + 1 - len(rows)]
    more = len(rows) > EXACT
    rows = rows[:EXACT]
    facets = [facet_of(tab, query, each, Counter(row[at] for row in rows))
              for at, each in enumerate(tab.facets)]  # fmt: skip
    durations = (
        [(row[-2].timestamp(), row[-1]) for row in rows if row[-1] is not None] if timed else []
    )
    return Counted(len(rows), more, [each for each in facets if each.values], durations)


def facet_of(tab: Tab, query: Query, of: Field, counts: Counter[Any]) -> Facet:
    """Return the facet of a field, the most frequent values first."""
    listed = counts.most_common(MOST_VALUES)
    most = max((count for _, count in listed), default=1)
    values = [_value(query, of, raw, count, most) for raw, count in listed if _said(of, raw)]
    return Facet(of, values, max(0, len(counts) - MOST_VALUES))


def _value(query: Query, of: Field, raw: Any, count: int, most: int) -> FacetValue:
    value = Value(Sign.NONE) if raw is None and of.name != "door" else _read(of, raw)
    term = FilterTerm(of, (value,))
    same = next((each for each in query.terms if each == term), None)
    after = query.without(same) if same is not None else query.with_only(term)
    text = write_value(of, value) if of.kind is FieldKind.NUMBER else _said(of, raw)
    return FacetValue(text, count, str(term), same is not None, str(after), 100 * count // most)


def _read(of: Field, raw: Any) -> Value:
    if of.kind is FieldKind.NUMBER:
        return Value(Sign.IS, number=float(raw))
    return Value(Sign.IS, _said(of, raw))


def _said(of: Field, raw: Any) -> str:
    if raw is None:
        return NATIVE if of.name == "door" else NONE
    return str(raw)
