"""The list that an address asks for: its query, order and columns, and the links to its neighbours.

Rules
1. ``q`` is the query; an address without it opens the reader's view of the tab, else the usual query. An
   empty ``q`` is the query of all rows.
2. The address has all that a page shows: copied, it opens the same list for everyone who may see it.
3. A mistake selects nothing, and is named with its place and a cure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

from django.http import QueryDict
from django.utils.safestring import SafeString

from tangram_web.explorer.columns import Column, chosen_columns, columns_of, drawing_of
from tangram_web.explorer.fields import ACTIONS, TASKS, Tab
from tangram_web.explorer.impossible import why_nothing
from tangram_web.explorer.language import FilterTerm, Query, QueryError, parse
from tangram_web.explorer.orders import Order, order_of, orders_of
from tangram_web.explorer.reading import Cursor, cursor_of, read_page
from tangram_web.live.access import Sight

#: Query of a tab whose address has none.
USUAL: Final = {
    "actions": "since:1h",
    "trajectories": "since:24h",
    "rollouts": "since:24h",
    "tasks": "",
}


@dataclass(frozen=True)
class Chip:
    """A term of the query, and the address without it."""

    name: str
    said: str
    text: str
    rest: str


@dataclass(frozen=True)
class ColumnHead:
    """Title of a column, and the address of the list in its order."""

    column: Column
    link: str = ""
    #: ``ascending`` or ``descending`` where the list is in this order.
    sorted: str = ""


@dataclass(frozen=True)
class ListedRow:
    """A row as it is shown."""

    id: str
    #: It has not ended: verbs apply to it.
    live: bool
    cells: list[tuple[Column, SafeString | str]]
    #: Key of its task; empty where rows are not selected.
    task: str = ""


@dataclass
class Listing:
    """One page of a list."""

    tab: Tab
    text: str
    query: Query = field(default_factory=Query)
    order: Order | None = None
    falls: bool = True
    columns: tuple[Column, ...] = ()
    #: Columns are of the address, not the reader's own.
    columns_given: bool = False
    rows: list[Any] = field(default_factory=list)
    lines: list[ListedRow] = field(default_factory=list)
    at: float = 0.0
    #: Query strings of the following and of the first page; empty: there is none.
    older: str = ""
    newest: str = ""
    mistakes: list[str] = field(default_factory=list)
    #: The query is not of the address.
    usual: bool = False
    #: Why the query can find nothing.
    nothing: list[str] = field(default_factory=list)

    @property
    def mistake(self) -> str:
        """All mistakes in one text."""
        return " · ".join(self.mistakes)

    @property
    def chips(self) -> list[Chip]:
        """The terms, each with the address without it."""
        return [
            Chip(f"{'-' if term.negated else ''}{term.field.name}", _said(term), str(term),
                 self.link(q=str(self.query.without(term))))
            for term in self.query.terms
        ]  # fmt: skip

    @property
    def heads(self) -> list[ColumnHead]:
        """The titles of the columns."""
        return [self._head(column) for column in self.columns]

    @property
    def order_text(self) -> str:
        """The order as the address has it; empty for the usual one."""
        if self.order is None or (
            self.order is orders_of(self.tab)[0] and self.falls == self.order.falls
        ):
            return ""
        return f"{'-' if self.falls else ''}{self.order.name}"

    @property
    def all_columns(self) -> list[tuple[Column, bool]]:
        """All columns of the tab, and whether they are shown."""
        return [(each, each in self.columns) for each in columns_of(self.tab)]

    @property
    def export_query(self) -> str:
        """Query string of the files of this list."""
        return urlencode({"q": self.text})

    def link(self, **changes: str) -> str:
        """Return the query string of this list with other members; empty ones are left out."""
        given = {"q": self.text, "sort": self.order_text}
        if self.columns_given:
            given["columns"] = ",".join(column.name for column in self.columns)
        given |= changes
        return urlencode({name: value for name, value in given.items() if value or name == "q"})

    def _head(self, column: Column) -> ColumnHead:
        found = order_of(self.tab, column.order) if column.order else None
        if found is None:
            return ColumnHead(column)
        current = self.order is found
        falls = not self.falls if current else found.falls
        sort = f"{'-' if falls else ''}{found.name}"
        which = ("descending" if self.falls else "ascending") if current else ""
        return ColumnHead(column, self.link(sort=sort), which)


def _said(term: FilterTerm) -> str:
    return term.said if term.field.name else str(term).removeprefix("-")


def text_of_address(tab: Tab, given: Mapping[str, str], usual: str | None = None) -> str:
    """Return the query that an address asks for: ``q`` and what was typed beside it."""
    text = given.get("q")
    if text is None:
        text = USUAL[tab.name] if usual is None else usual
    return " ".join(part for part in (text.strip(), given.get("add", "").strip()) if part)


def listing(
    tab: Tab, sight: Sight, given: QueryDict, now: float, *, usual: str | None = None,
    own_columns: tuple[str, ...] = (),
) -> Listing:  # fmt: skip
    """Return the page that an address asks for."""
    found = Listing(tab, text_of_address(tab, given, usual), at=now)
    found.usual = "q" not in given
    names = tuple(filter(None, given.get("columns", "").split(",")))
    found.columns = chosen_columns(tab, names or own_columns)
    found.columns_given = bool(names)
    found.order, found.falls = _order(tab, given.get("sort", ""))
    cursor = _cursor(found, given.get("after", ""))
    try:
        found.query = parse(tab, found.text)
    except QueryError as error:
        found.mistakes += [str(each) for each in error.mistakes]
    if found.mistakes:
        return found
    found.text = str(found.query)
    found.nothing = why_nothing(tab, found.query, now)
    _read(found, sight, now, cursor)
    return found


def _read(found: Listing, sight: Sight, now: float, cursor: Cursor | None) -> None:
    order = found.order or orders_of(found.tab)[0]
    page = read_page(
        found.tab, found.query, sight, order, falls=found.falls, now=now, cursor=cursor
    )
    found.rows, found.at = page.rows, page.at
    found.older = "" if page.next is None else found.link(after=str(page.next))
    found.newest = "" if cursor is None else found.link()
    drawing = drawing_of(found.tab, page.rows, page.at)
    found.lines = [
        ListedRow(
            row.pk,
            getattr(row, "finished_seq", 0) is None and row.state != "finished",
            [(column, column.cell(row, drawing)) for column in found.columns],
            _task_of(found.tab, row),
        )
        for row in page.rows
    ]


def _order(tab: Tab, text: str) -> tuple[Order, bool]:
    found = order_of(tab, text.removeprefix("-"))
    if found is None:
        usual = orders_of(tab)[0]
        return usual, usual.falls
    return found, text.startswith("-")


def _cursor(found: Listing, text: str) -> Cursor | None:
    cursor = cursor_of(text) if text else None
    if text and cursor is None:
        found.mistakes.append("after: this cursor was not made by this server; leave it out")
    return cursor


def explained(tab: Tab) -> list[tuple[str, str, str, str]]:
    """Return name, meaning, form and examples of each filter, for “All filters”."""
    return [
        (each.name, each.says, str(each.kind), " ".join(f"{each.name}:{value}" for value in each.values[:8]))
        for each in tab.fields
    ]  # fmt: skip


def _task_of(tab: Tab, row: Any) -> str:
    if tab is TASKS:
        return str(row.pk)
    return f"{row.project}/{row.task}" if tab is ACTIONS else ""
