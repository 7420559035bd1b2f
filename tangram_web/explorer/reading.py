"""One page of a list: its rows, and the cursor of the rows that follow.

Rules
1. A page and those after it have one instant: ages, and durations that still count, are of its cursor's
   time. A page that is loaded again begins at a new one.
2. A cursor names the last row: a page costs the same wherever it is.
3. The text of a query is read before any row is: a mistake reads nothing.
4. Keys and ids are read first, in the order of the list, then the rows of the page by their ids.
"""

from __future__ import annotations

import base64
import binascii
import heapq
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from tangram_web.explorer.conditions import parts_of, whole_rows
from tangram_web.explorer.fields import Tab
from tangram_web.explorer.indexes import rows_by_id, rows_in_order
from tangram_web.explorer.language import Query
from tangram_web.explorer.orders import Key, Order, Stream, sections
from tangram_web.live.access import Sight

#: Rows of a page.
PAGE: Final = 50
#: Columns that a list does not show, and that can be large.
LARGE: Final = {
    "actions": ("result", "metadata", "widths", "used", "placement"),
    "trajectories": ("environment", "metadata"),
    "tasks": ("metadata",),
    "rollouts": ("metadata", "times", "attempts"),
}


class Cursor(msgspec.Struct, array_like=True, frozen=True):
    """The last row of a page."""

    #: Instant of the list.
    at: float
    section: int
    key: Key
    id: str

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode().rstrip("=")


@dataclass(frozen=True)
class RowPage:
    """Some rows of a list."""

    rows: list[Any]
    #: Instant of the list.
    at: float
    #: Cursor of the following rows; None: there are none.
    next: Cursor | None


def cursor_of(text: str) -> Cursor | None:
    """Return the cursor of ``text``; None for a text that is none of ours."""
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        found = msgspec.json.decode(raw, type=Cursor)
    except (ValueError, binascii.Error, msgspec.DecodeError):
        return None
    sound = 0 < found.at < 1e11 and 0 <= found.section < 8 and len(found.id) < 600
    texts = [found.id, found.key if isinstance(found.key, str) else ""]
    return found if sound and not any("\0" in text for text in texts) else None


def read_page(
    tab: Tab, query: Query, sight: Sight, order: Order, *, falls: bool, now: float,
    cursor: Cursor | None = None, limit: int = PAGE,
) -> RowPage:  # fmt: skip
    """Return the first rows of a list, or those after ``cursor``."""
    at = now if cursor is None else cursor.at
    parts = {
        part: rows_by_id(tab, part, query, sight, at)
        if order.column == "pk"
        else rows_in_order(tab, part, query, sight, at, indexed=order.indexed)
        for part in parts_of(tab)
    }
    found: list[tuple[int, Key, str]] = []
    for number, streams in enumerate(sections(tab, order, parts, at, falls=falls)):
        if cursor is not None and number < cursor.section:
            continue
        if cursor is not None and number == cursor.section:
            streams = _after(streams, cursor)
        found += [(number, *each) for each in _merged(streams, limit + 1 - len(found))]
        if len(found) > limit:
            break
    following = Cursor(at, *found[limit - 1]) if len(found) > limit else None
    return RowPage(_whole(tab, [row_id for *_, row_id in found[:limit]]), at, following)


def _whole(tab: Tab, ids: list[str]) -> list[Any]:
    """Return the rows of ids in their order; one that was deleted meanwhile is left out."""
    if not ids:
        return []
    rows = whole_rows(tab).filter(pk__in=ids).order_by().defer(*LARGE[tab.name])
    by_id = {row.pk: row for row in rows}
    return [by_id[row_id] for row_id in ids if row_id in by_id]


def _after(streams: list[Stream], cursor: Cursor) -> list[Stream]:
    try:
        return [stream.after(cursor.key, cursor.id) for stream in streams]
    except (TypeError, ValueError, OverflowError):  # a key of another order
        return [replace(stream, rows=stream.rows.none()) for stream in streams]


def _merged(streams: list[Stream], limit: int) -> list[tuple[Key, str]]:
    lists = [stream.first(limit) for stream in streams]
    if len(lists) == 1:
        return lists[0]
    falls = streams[0].falls
    merged = heapq.merge(*lists, reverse=falls)
    return [each for each, _ in zip(merged, range(limit), strict=False)]
