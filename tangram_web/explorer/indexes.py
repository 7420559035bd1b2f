"""Indexes by which rows of an order are found: help for SQLite, which has no statistics.

Rules
1. An index of tasks is not used for tasks with many actions, if an index has the order of the list: the first
   rows of the order are found sooner.
2. Of the newest rows, a condition that finds few ids by its index alone is read first, as their ids: rows are read
   by these from the newest one on, until there are enough. How many there are is counted, up to a bound.
3. In a short time, and where the only condition, a duration or a task selects many rows, all rows are read by id.

PostgreSQL plans by statistics. Only a query that is one such condition is read by the latest ids there, too:
those are in the index, so fewer rows are read.
"""

from __future__ import annotations

from typing import Any, Final

from django.db import connection
from django.db.models import QuerySet, Sum

from tangram_web.explorer.conditions import (
    MAX_NAMES,
    RowPart,
    condition_of,
    rows_of,
    task_names,
)
from tangram_web.explorer.fields import Tab
from tangram_web.explorer.impossible import instant
from tangram_web.explorer.language import FilterTerm, Query
from tangram_web.explorer.values import Sign
from tangram_web.live.access import Sight
from tangram_web.records.models import ActionRecord, TaskRecord

#: Actions of tasks from which on an index of tasks is not used to find the first of an order.
WIDE: Final = 20_000
#: Tasks with one of so many actions of all are a large part.
LARGE_PART: Final = 4
#: A time so short that its range of ids has few rows, in seconds.
RECENT: Final = 86_400
#: Ids of a condition that are read before rows, at most: alone, and where other conditions need the rows.
MOST_IDS: Final = 100_000
MOST_IDS_OF_MANY: Final = 30_000
#: Fields whose indexes have few rows of each value.
_SELECTIVE: Final = frozenset({"", "id", "exit", "outcome", "trajectory"})
#: Durations with an index, and fields whose index has the rows of one value by id.
_DURATIONS: Final = frozenset({"act", "queue"})
_BY_ID: Final = frozenset({"", "outcome", "task", "trajectory"})


def rows_in_order(
    tab: Tab, part: RowPart, query: Query, sight: Sight, now: float, *, indexed: bool
) -> QuerySet[Any]:
    """Return the rows of a part for an order that is not that of their ids; ``indexed``: an index has it."""
    plain = set[str]()
    helped = indexed and part is RowPart.ENDED and tab.name == "actions"
    if helped and connection.vendor == "sqlite" and not _is_narrow(query, now):
        plain = {"task" for term in query.of("task") if _actions_of(term) > WIDE}
    return rows_of(tab, part, query, sight, now, frozenset(plain))


def rows_by_id(
    tab: Tab, part: RowPart, query: Query, sight: Sight, now: float, newest: int | None = None
) -> QuerySet[Any]:
    """Return the rows of a part, of which the first are read in the order of their ids.

    ``newest``: only so many are read, the newest ones.
    """
    if part is not RowPart.ENDED or tab.name != "actions":
        return rows_of(tab, part, query, sight, now)
    if connection.vendor != "sqlite":
        return _by_latest_ids(tab, query, sight, now, newest)
    plain, recent = set[str](), _is_recent(query, now)
    for term in query.terms:
        if term.negated or not _has_ids(term):
            continue
        if recent:
            plain |= {term.field.column} if term.field.name in _DURATIONS else set()
            continue
        ids = _ids_of(tab, term, now)
        most = MOST_IDS if len(query.terms) == 1 else MOST_IDS_OF_MANY
        if ids[: most + 1].count() <= most:
            others = Query(tuple(each for each in query.terms if each is not term))
            return rows_of(tab, part, others, sight, now, frozenset(plain)).filter(pk__in=ids)
        large = term.field.name == "task" and _is_large_part(term)
        if term.field.name in _DURATIONS or large or len(query.terms) == 1:
            plain.add(term.field.column)
    return rows_of(tab, part, query, sight, now, frozenset(plain))


def _by_latest_ids(
    tab: Tab, query: Query, sight: Sight, now: float, newest: int | None
) -> QuerySet[Any]:
    alone = query.terms[0] if len(query.terms) == 1 and sight.everything else None
    if newest is None or alone is None or alone.negated or not (
        _is_of_the_end(alone) and _has_ids(alone)
    ):  # fmt: skip
        return rows_of(tab, RowPart.ENDED, query, sight, now)
    ids = _ids_of(tab, alone, now).order_by("-pk")[:newest]
    return rows_of(tab, RowPart.ENDED, Query(), sight, now).filter(pk__in=ids)


def _has_ids(term: FilterTerm) -> bool:
    """Say whether an index alone has the ids of a term, but not in their order."""
    if any(value.sign is Sign.NONE for value in term.values):
        return False
    if term.field.name in _DURATIONS:
        return all(value.sign is not Sign.NOT for value in term.values)
    one = len(term.values) == 1
    if term.field.name == "exit":  # the index has no commands that ended with 0
        return one and term.values[0].sign is Sign.NOT and term.values[0].number == 0
    return term.field.name in _BY_ID and not (one and term.values[0].sign is Sign.IS)


def _is_of_the_end(term: FilterTerm) -> bool:
    """Say whether only finished rows meet a term."""
    return term.field.name in ("exit", "outcome")


def _ids_of(tab: Tab, term: FilterTerm, now: float) -> QuerySet[Any]:
    found = condition_of(tab, RowPart.ENDED, term, now)
    return ActionRecord.objects.filter(found).order_by().values("pk")


def _is_recent(query: Query, now: float) -> bool:
    """Say whether the range of ids has few rows."""
    return any(
        not term.negated and now - instant(term.values[0], now) <= RECENT
        for term in query.of("since")
    )


def _is_narrow(query: Query, now: float) -> bool:
    """Say whether an index of another condition than the task finds few rows."""
    return _is_recent(query, now) or any(
        term.field.name in _SELECTIVE for term in query.terms if not term.negated
    )


def _is_large_part(term: FilterTerm) -> bool:
    """Say whether tasks have so many of all actions that the newest ones are found soon among all."""
    theirs = _actions_of(term)
    if theirs <= WIDE:
        return False
    everything = TaskRecord.objects.order_by().aggregate(all=Sum("actions"))["all"] or 0
    return bool(LARGE_PART * theirs > everything)


def _actions_of(term: FilterTerm) -> int:
    """Return the number of actions of tasks; 0 for more than `MAX_NAMES` tasks, or for a negated term.

    A task's own row has the number of its actions.
    """
    names = [] if term.negated else task_names(term)
    if not 0 < len(names) <= MAX_NAMES:
        return 0
    tasks = TaskRecord.objects.filter(name__in=names)
    return int(tasks.order_by().aggregate(all=Sum("actions"))["all"] or 0)
