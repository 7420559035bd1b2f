"""Orders of the lists: sections that follow each other, and streams of a section that are merged.

Rules
1. The first section has the rows with a value, the next one those without, by id: what has no value is
   never first.
2. A duration of an unfinished action counts until now, so a section has a stream of the unfinished ones,
   ordered by when they began, and one of the others, ordered by their column.
3. Rows of a stream are unique by key and id: a page goes on after the last row of the page before, and
   rows that arrive meanwhile shift nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from django.db.models import Q, QuerySet

from tangram_web.explorer.conditions import RUNNING_CLOCKS, RowPart, at_time
from tangram_web.explorer.fields import Tab

#: Value that orders a row, as JSON can hold it.
Key = float | int | str
Parts = Mapping[RowPart, QuerySet[Any]]


@dataclass(frozen=True)
class Order:
    """A column by which a list can be ordered."""

    name: str
    title: str
    column: str
    #: Descending unless the address says otherwise.
    falls: bool = True
    #: An index has it, of all rows and not of those of a task alone.
    indexed: bool = False


@dataclass(frozen=True)
class Stream:
    """Rows in one order."""

    rows: QuerySet[Any]
    column: str
    falls: bool
    #: Key of a value of ``column``, and back.
    key: Callable[[Any], Key]
    value: Callable[[Key], Any]
    #: The key falls as the column rises.
    flipped: bool = False

    def after(self, key: Key, row_id: str) -> Stream:
        """Return the rows that follow a row."""
        mark = "lt" if self.falls is not self.flipped else "gt"
        beyond, ids = f"{self.column}__{mark}", f"pk__{'lt' if self.falls else 'gt'}"
        if self.column == "pk":
            return self._with(self.rows.filter(**{ids: row_id}))
        value = self.value(key)
        # The first condition alone is a range of an index.
        reach = Q(**{f"{beyond}e": value})
        rest = Q(**{beyond: value}) | Q(**{self.column: value, ids: row_id})
        return self._with(self.rows.filter(reach & rest))

    def first(self, limit: int) -> list[tuple[Key, str]]:
        """Return key and id of the first rows.

        Whole rows are large: a database that sorts those of a time would write them to a file.
        """
        minus = "-" if self.falls is not self.flipped else ""
        names = [f"{minus}{self.column}", f"{'-' if self.falls else ''}pk"]
        if self.column == "pk":
            ids = self.rows.order_by(names[1]).values_list("pk", flat=True)
            return [("", row_id) for row_id in ids[:limit]]
        ordered = self.rows.order_by(*names).values_list(self.column, "pk")
        return [(self.key(value), row_id) for value, row_id in ordered[:limit]]

    def _with(self, rows: QuerySet[Any]) -> Stream:
        return Stream(rows, self.column, self.falls, self.key, self.value, self.flipped)


_ORDERS: Final[dict[str, tuple[Order, ...]]] = {
    "actions": (
        Order("submitted", "Submitted", "pk"),
        Order("finished", "Finished", "finished_seq", indexed=True),
        Order("act", "ACT", "act_seconds", indexed=True),
        Order("queue", "Queue", "queue_seconds", indexed=True),
        Order("execution", "Execution", "execution_seconds"),
        Order("exit", "Exit code", "exit_code"),
        Order("task", "Task", "task", falls=False),
        Order("trajectory", "Trajectory", "trajectory", falls=False),
    ),
    "trajectories": (
        Order("opened", "Opened", "opened_at"),
        Order("actions", "Actions", "actions"),
        Order("finished", "Finished", "finished"),
        Order("external", "Sum of ACT", "external_seconds"),
        Order("task", "Task", "task", falls=False),
        Order("name", "Name", "name", falls=False),
    ),
    "tasks": (
        Order("opened", "Opened", "opened_at"),
        Order("actions", "Actions", "actions"),
        Order("finished", "Finished", "finished"),
        Order("failing", "Exit not 0", "failing"),
        Order("external", "Sum of ACT", "external_seconds"),
        Order("name", "Name", "name", falls=False),
    ),
    "rollouts": (
        Order("submitted", "Submitted", "pk"),
        Order("finished", "Finished", "finished_seq"),
        Order("total", "Took", "total_seconds"),
        Order("reward", "Reward", "reward"),
        Order("turns", "Turns", "turns"),
        Order("tokens", "Tokens", "tokens"),
        Order("task", "Task", "task", falls=False),
    ),
}
_OPTIONAL: Final = frozenset(
    {"finished_seq", "act_seconds", "queue_seconds", "execution_seconds", "exit_code", "trajectory",
     "total_seconds", "reward"}
)  # fmt: skip


def orders_of(tab: Tab) -> tuple[Order, ...]:
    """Return the orders of a tab; the first one is the usual."""
    return _ORDERS[tab.name]


def order_of(tab: Tab, name: str) -> Order | None:
    """Return the order of that name."""
    return next((each for each in orders_of(tab) if each.name == name), None)


def sections(
    tab: Tab, order: Order, parts: Parts, now: float, *, falls: bool
) -> list[list[Stream]]:
    """Return the sections of a list, each with its streams."""
    if tab.name == "actions" and order.name == "exit":
        return _by_exit(parts, falls=falls)
    clock = RUNNING_CLOCKS.get(order.name) if tab.name == "actions" else None
    if clock is not None:
        return _by_clock(order, clock, parts, now, falls=falls)
    column = order.column
    if column not in _OPTIONAL:
        return [[_plain(rows, column, falls=falls) for rows in parts.values()]]
    return [
        [_plain(rows.filter(**{f"{column}__isnull": False}), column, falls=falls)
         for part, rows in parts.items() if part is RowPart.ENDED or column == "trajectory"],
        [_plain(rows.filter(**{f"{column}__isnull": True}), "pk", falls=True)
         for rows in parts.values()],
    ]  # fmt: skip


def _by_exit(parts: Parts, *, falls: bool) -> list[list[Stream]]:
    """Order by exit code: failing commands first, which a partial index has, then 0, then none."""
    ended = parts[RowPart.ENDED]
    failing = ended.filter(Q(exit_code__gt=0) | Q(exit_code__lt=0))
    return [
        [_plain(failing, "exit_code", falls=falls)],
        [_plain(ended.filter(exit_code=0), "pk", falls=True)],
        [
            _plain(rows.filter(exit_code__isnull=True), "pk", falls=True)
            for rows in parts.values()
        ],
    ]  # fmt: skip


def _by_clock(
    order: Order, clock: tuple[Q, str], parts: Parts, now: float, *, falls: bool
) -> list[list[Stream]]:
    state, since = clock
    live, ended = parts[RowPart.LIVE], parts[RowPart.ENDED]
    counting = live.filter(state, **{f"{since}__isnull": False})
    others = live.filter(~state | Q(**{f"{since}__isnull": True}))
    running = Stream(
        counting, since, falls, lambda at: round(now - at.timestamp(), 6),
        lambda key: at_time(round(now - float(key), 6)), flipped=True,
    )  # fmt: skip
    measured = _plain(ended.filter(**{f"{order.column}__isnull": False}), order.column, falls=falls)
    rest = [_plain(ended.filter(**{f"{order.column}__isnull": True}), "pk", falls=True)]
    rest.append(_plain(others, "pk", falls=True))
    return [[running, measured], rest]


def _plain(rows: QuerySet[Any], column: str, *, falls: bool) -> Stream:
    if column == "opened_at":
        return Stream(rows, column, falls, _seconds, lambda key: at_time(float(key)))
    return Stream(rows, column, falls, lambda value: value, lambda key: key)


def _seconds(at: datetime) -> float:
    return round(at.astimezone(UTC).timestamp(), 6)
