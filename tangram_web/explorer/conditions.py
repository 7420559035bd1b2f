"""Conditions of a query on the rows of a tab.

Rules
1. Rows are read in two parts: those that have not ended, of which there are few and which have partial
   indexes, and those that have. A part that a query excludes is not read.
2. ``since`` and ``until`` are about the beginning. Unfinished rows are listed whatever ``since`` says.
3. Durations of unfinished actions are counted until now.
4. Ids begin with the millisecond of their making, so a time is a range of the primary key as well; the
   range is wider by `SKEW_SECONDS`, since two machines made id and time.
5. The pool of a row is the one that its request names, else that of its task, else the default of its project,
   as the scheduler reads it.
6. A beginning of a task or a trajectory is looked up among their own rows, of which there are fewer: a
   comparison with whole names can use an index on either database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import reduce
from math import ceil, floor
from operator import or_
from typing import Any, Final

from django.db import connection
from django.db.models import (
    Exists,
    F,
    Func,
    IntegerField,
    Model,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Sum,
    TextField,
)
from django.db.models.functions import Cast, Coalesce

from domain.action import ActionState
from domain.rollouts import RolloutState
from tangram_web.explorer.fields import Field, FieldKind, Tab
from tangram_web.explorer.impossible import instant
from tangram_web.explorer.language import FilterTerm, Query
from tangram_web.explorer.values import Sign, Value
from tangram_web.lib.endings import FAILED
from tangram_web.live.access import Sight
from tangram_web.pools.models import Project
from tangram_web.records.models import (
    ActionRecord,
    EndRecord,
    RolloutRecord,
    TaskRecord,
    TrajectoryRecord,
)
from tangram_web.records.selectors import NATIVE

NOTHING: Final = Q(pk__in=[])
#: An empty `Q` is left out of alternatives, as if it were `NOTHING`.
ALL: Final = ~NOTHING
#: Difference of the clocks that make an id and note a submission.
SKEW_SECONDS: Final = 300
#: Names that a beginning is replaced by; with more, the rows themselves are compared.
MAX_NAMES: Final = 400
_FINISHED: Final = "finished"
_LIVE_STATES: Final = {
    "actions": [state.value for state in ActionState if state != _FINISHED],
    "rollouts": [state.value for state in RolloutState if state != _FINISHED],
}
#: Other names of resources in ``waits``.
_RESOURCES: Final = {"cores": "cpu", "gpus": "gpu", "gpu chunks": "gpu"}
#: Duration → what an unfinished action must be in for it to count, and since when it counts.
RUNNING_CLOCKS: Final[dict[str, tuple[Q, str]]] = {
    "act": (ALL, "submitted_at"),
    "queue": (Q(state=ActionState.QUEUED), "submitted_at"),
    "execution": (Q(state=ActionState.RUNNING), "started_at"),
}
#: Rows of each lane of rollouts.
_LANES: Final = {
    "waiting": Q(state=RolloutState.WAITING),
    "parked": Q(state=RolloutState.PARKED),
    "run": Q(state=RolloutState.ASSIGNED, stage="run"),
    "eval": Q(state=RolloutState.ASSIGNED, stage="eval"),
    "init": Q(state=RolloutState.ASSIGNED) & (Q(stage="init") | Q(stage__isnull=True)),
    _FINISHED: Q(state=RolloutState.FINISHED),
}


class RowPart(StrEnum):
    """One of the parts in which the rows of a tab are read."""

    LIVE = "live"
    ENDED = "ended"


#: Tabs whose rows are read in two parts, with the prefix of their ids.
TWO_PARTS: Final = {"actions": "act_", "rollouts": "rol_"}


def parts_of(tab: Tab) -> tuple[RowPart, ...]:
    """Return the parts in which the rows of a tab are read."""
    return tuple(RowPart) if tab.name in TWO_PARTS else (RowPart.ENDED,)


def rows_of(
    tab: Tab, part: RowPart, query: Query, sight: Sight, now: float,
    plain: frozenset[str] = frozenset(),
) -> QuerySet[Any]:  # fmt: skip
    """Return the rows of a part that a query selects and a reader may see, in no order.

    ``plain``: columns whose indexes SQLite does not use; an empty one: those of words.
    """
    rows = sight.of(_rows(tab, part))
    for term in query.terms:
        column = term.field.column
        if column in plain and not term.negated:
            columns = [column] if column else ["task", "trajectory"]
            rows = rows.alias(**{f"plain_{name}": _Unindexed(F(name)) for name in columns})
            term = replace(term, field=replace(term.field, column=f"plain_{column}"))
        rows = rows.filter(condition_of(tab, part, term, now))
    return rows.order_by()


class _Unindexed(Func):
    """A column for which SQLite uses no index."""

    template = "+%(expressions)s"


def task_names(term: FilterTerm) -> list[str]:
    """Return the names of the tasks that a term selects: one more than `MAX_NAMES` of a beginning, at most."""
    names = [value.text for value in term.values if value.sign is Sign.IS]
    for value in term.values:
        if value.sign is Sign.BEGINS:
            names += names_of(TaskRecord, value.text)
    return list(dict.fromkeys(names))


def all_rows_of(tab: Tab, query: Query, sight: Sight, now: float) -> QuerySet[Any]:
    """Return the rows of all parts in one, for lists with an order of their own."""
    first, *rest = (rows_of(tab, part, query, sight, now) for part in parts_of(tab))
    return reduce(or_, rest, first)


def at_time(seconds: float) -> datetime:
    """Return seconds since the epoch as the value of a column; the calendar bounds it."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=max(0.0, min(seconds, 2.2e11)))


def whole_rows(tab: Tab) -> QuerySet[Any]:
    """Return all rows of a tab, with what the tab computes of them."""
    match tab.name:
        case "trajectories":
            return TrajectoryRecord.objects.all()
        case "tasks":
            return TaskRecord.objects.annotate(failing=failing_count())
        case "rollouts":
            return RolloutRecord.objects.all()
    return ActionRecord.objects.all()


def _rows(tab: Tab, part: RowPart) -> QuerySet[Any]:
    rows = whole_rows(tab)
    if tab.name not in TWO_PARTS:
        return rows
    if part is RowPart.ENDED:
        return rows.filter(state=_FINISHED)
    # The first condition is that of the partial index, the second has its first column.
    live = rows.filter(finished_seq__isnull=True, state__in=_LIVE_STATES[tab.name])
    if connection.vendor != "sqlite":
        return live
    # SQLite has no statistics: it would rather read all actions of a task, or of a project.
    return rows.filter(pk__in=live.order_by().values("pk"))


def failing_count() -> Coalesce:
    """Return, of a task, the number of commands that ended with an exit code that is not 0."""
    ends = EndRecord.objects.filter(
        project=OuterRef("project"), task=OuterRef("name"), outcome=FAILED
    )
    counted = ends.order_by().values("outcome").annotate(all=Sum("actions")).values("all")
    return Coalesce(Subquery(counted), 0, output_field=IntegerField())


def condition_of(tab: Tab, part: RowPart, term: FilterTerm, now: float) -> Q:
    """Return the condition of a term on the rows of a part."""
    special = _SPECIAL.get((tab.name, term.field.name)) or _SPECIAL.get(("", term.field.name))
    if special is not None:
        found = any_of(special(tab, part, term.field, value, now) for value in term.values)
    else:
        found = _plain(tab, part, term, now)
    return ~found if term.negated else found


def any_of(conditions: Iterable[Q]) -> Q:
    """Return the condition that one of ``conditions`` holds."""
    return reduce(or_, conditions, NOTHING)


def _plain(tab: Tab, part: RowPart, term: FilterTerm, now: float) -> Q:
    field = term.field
    if field.kind is FieldKind.DURATION:
        return any_of(_duration(tab, part, field, value, now) for value in term.values)
    if field.kind is FieldKind.NUMBER:
        return any_of(_number(field, value) for value in term.values)
    whole = [value.text for value in term.values if value.sign is Sign.IS]
    others = [_text(field.column, value) for value in term.values if value.sign is not Sign.IS]
    if len(whole) == 1:
        others.append(Q(**{field.column: whole[0]}))
    elif whole:
        others.append(Q(**{f"{field.column}__in": whole}))
    return any_of(others)


def _text(column: str, value: Value) -> Q:
    return (
        Q(**{f"{column}__isnull": True}) if value.sign is Sign.NONE else begins(column, value.text)
    )


def begins(column: str, text: str) -> Q:
    """Select texts by their beginning; letters of either case differ, on SQLite as well."""
    if not text:
        return Q(**{f"{column}__isnull": False})
    if connection.vendor == "sqlite":
        following = text[:-1] + chr(min(ord(text[-1]) + 1, 0x10FFFF))
        if 0xD800 <= ord(following[-1]) <= 0xDFFF:
            following = text[:-1] + "\ue000"
        return Q(**{f"{column}__gte": text, f"{column}__lt": following})
    return Q(**{f"{column}__startswith": text})


def _number(field: Field, value: Value) -> Q:
    """Compare a number; a fraction in a comparison with whole numbers is rounded to where it holds."""
    ends = [value.number, *([value.upper] if value.sign is Sign.RANGE else [])]
    if field.fraction or all(end.is_integer() for end in ends):
        return compared(field.column, value)
    match value.sign:
        case Sign.OVER | Sign.FROM:
            return Q(**{f"{field.column}__gte": ceil(value.number)})
        case Sign.UNDER | Sign.TO:
            return Q(**{f"{field.column}__lte": floor(value.number)})
        case Sign.RANGE:
            low, high = ceil(value.number), floor(value.upper)
            return Q(**{f"{field.column}__gte": low, f"{field.column}__lte": high})
        case Sign.NOT:
            return Q(**{f"{field.column}__isnull": False})
    return NOTHING


def compared(column: str, value: Value) -> Q:
    """Select numbers by a comparison."""
    match value.sign:
        case Sign.NONE:
            return Q(**{f"{column}__isnull": True})
        case Sign.NOT:
            return Q(**{f"{column}__gt": value.number}) | Q(**{f"{column}__lt": value.number})
        case Sign.RANGE:
            return Q(**{f"{column}__gte": value.number, f"{column}__lte": value.upper})
        case Sign.OVER:
            return Q(**{f"{column}__gt": value.number})
        case Sign.FROM:
            return Q(**{f"{column}__gte": value.number})
        case Sign.UNDER:
            return Q(**{f"{column}__lt": value.number})
        case Sign.TO:
            return Q(**{f"{column}__lte": value.number})
    return Q(**{column: value.number})


def _duration(tab: Tab, part: RowPart, field: Field, value: Value, now: float) -> Q:
    """Compare a duration, of an unfinished action the time until now."""
    clock = RUNNING_CLOCKS.get(field.name) if tab.name == "actions" else None
    if part is RowPart.ENDED or clock is None:
        return compared(field.column, value)
    state, since = clock
    return state & _clocked(since, value, now)


def _clocked(column: str, value: Value, now: float) -> Q:
    """Compare the time since ``column``: what is longer began earlier."""
    at, before, after = at_time(now - value.number), f"{column}__lt", f"{column}__gt"
    match value.sign:
        case Sign.RANGE:
            return Q(**{f"{column}__lte": at, f"{column}__gte": at_time(now - value.upper)})
        case Sign.OVER | Sign.FROM:
            return Q(**{before: at})
        case Sign.UNDER | Sign.TO:
            return Q(**{after: at})
        case Sign.NOT:
            return ALL
    return Q(**{column: at})


def _state(tab: Tab, part: RowPart, field: Field, value: Value, now: float) -> Q:
    if tab.name not in TWO_PARTS:
        return Q(state=value.text)
    if part is RowPart.ENDED:
        return ALL if value.text == _FINISHED else NOTHING
    return NOTHING if value.text == _FINISHED else Q(state=value.text)


def _outcome(tab: Tab, part: RowPart, field: Field, value: Value, now: float) -> Q:
    if part is RowPart.LIVE:
        return ALL if value.sign is Sign.NONE else NOTHING
    return NOTHING if value.sign is Sign.NONE else Q(**{field.column: value.text})


def _exit(tab: Tab, part: RowPart, field: Field, value: Value, now: float) -> Q:
    if part is RowPart.LIVE:
        return ALL if value.sign is Sign.NONE else NOTHING
    found = _number(field, value)
    failing = value.sign is Sign.IS and value.number != 0
    # Redundant, but the partial index of failing commands has this condition.
    return found & compared("exit_code", Value(Sign.NOT)) if failing else found


def _since(tab: Tab, part: RowPart, field: Field, value: Value, now: float) -> Q:
    at = instant(value, now)
    begun = Q(**{f"{field.column}__gte": at_time(at)})
    if tab.name == "trajectories":
        return begun | Q(state="open")
    if part is RowPart.LIVE:
        return ALL
    prefix = TWO_PARTS.get(tab.name)
    return begun if prefix is None else begun & Q(id__gte=id_at(prefix, at - SKEW_SECONDS))


def _until(tab: Tab, part: RowPart, field: Field, value: Value, now: float) -> Q:
    at = instant(value, now)
    begun = Q(**{f"{field.column}__lt": at_time(at)})
    prefix = TWO_PARTS.get(tab.name)
    return begun if prefix is None else begun & Q(id__lt=id_at(prefix, at + SKEW_SECONDS))


def id_at(prefix: str, at: float) -> str:
    """Return the beginning of the ids that are made at a time."""
    return f"{prefix}{int(max(0.0, min(at * 1000, 2**47))):012x}"


def _door(tab: Tab, part: RowPart, field: Field, value: Value, now: float) -> Q:
    if value.sign is Sign.BEGINS:
        return begins("door", value.text)
    return Q(door__isnull=True) if value.text == NATIVE else Q(door=value.text)


def _task(tab: Tab, part: RowPart, field: Field, value: Value, now: float) -> Q:
    if value.sign is not Sign.BEGINS:
        return Q(**{field.column: value.text})
    return _named(field.column, TaskRecord, value.text)


def _trajectory(tab: Tab, part: RowPart, field: Field, value: Value, now: float) -> Q:
    if value.sign is Sign.NONE:
        return Q(trajectory__isnull=True)
    if value.sign is not Sign.BEGINS:
        return Q(**{field.column: value.text})
    return _named(field.column, TrajectoryRecord, value.text)


def names_of(model: type[Model], head: str) -> list[str]:
    """Return names of tasks or trajectories with a beginning: one more than `MAX_NAMES`, at most."""
    rows = model._default_manager.filter(begins("name", head)).order_by()
    return list(rows.values_list("name", flat=True).distinct()[: MAX_NAMES + 1])


def _named(column: str, model: type[Model], head: str) -> Q:
    names = names_of(model, head)
    if len(names) > MAX_NAMES:
        return begins(column, head)
    return Q(**{f"{column}__in": names}) if names else NOTHING


def _id(tab: Tab, part: RowPart, field: Field, value: Value, now: float) -> Q:
    column = field.column
    if value.sign is Sign.IS and not (column == "id" and len(value.text) < 32):
        return Q(**{column: value.text})
    found = begins(column, value.text)
    # No id goes on with a letter after z.
    return found & Q(id__gte=value.text, id__lt=f"{value.text}zzzz") if column == "id" else found


def _waits(tab: Tab, part: RowPart, field: Field, value: Value, now: float) -> Q:
    if part is RowPart.ENDED:
        return NOTHING
    name = _RESOURCES.get(value.text, value.text).replace("\\", "\\\\").replace('"', '\\"')
    said = f'"{name}' if value.sign is Sign.BEGINS else f'"{name}":'
    needing = ActionRecord.objects.filter(finished_seq__isnull=True, state=ActionState.QUEUED)
    needing = needing.annotate(said=Cast(F("cost"), TextField())).filter(said__contains=said)
    return Q(state=ActionState.QUEUED, id__in=needing.order_by().values("id"))


def _pool(tab: Tab, part: RowPart, field: Field, value: Value, now: float) -> Q:
    """Select by the pool that the scheduler uses: the row's own, else its task's, else its project's default."""
    exact = value.sign is not Sign.BEGINS
    named = Q(pool=value.text) if exact else begins("pool", value.text)
    named_default = "default_pool__name"
    default = Q(**{named_default: value.text}) if exact else begins(named_default, value.text)
    projects = list(Project.objects.filter(default).values_list("name", flat=True))
    if tab.name == "tasks":
        return named | Q(pool="", project__in=projects)
    tasks = TaskRecord.objects.filter(project=OuterRef("project"), name=OuterRef("task"))
    of_task = Q(Exists(tasks.filter(named)))
    of_project = Q(project__in=projects) & ~Q(Exists(tasks.exclude(pool="")))
    return named | (Q(pool="") & (of_task | of_project))


def _lane(tab: Tab, part: RowPart, field: Field, value: Value, now: float) -> Q:
    if part is RowPart.ENDED:
        return ALL if value.text == _FINISHED else NOTHING
    return NOTHING if value.text == _FINISHED else _LANES[value.text]


def _word(tab: Tab, part: RowPart, field: Field, value: Value, now: float) -> Q:
    """Select by the beginning of an id, a task or a trajectory."""
    text = value.text
    match tab.name:
        case "actions":
            prefix = TWO_PARTS[tab.name]
            like_id = text.startswith(prefix) or prefix.startswith(text)
            return (
                (_id(tab, part, _ID, value, now) if like_id else NOTHING)
                | _named(f"{field.column}task", TaskRecord, text)
                | _named(f"{field.column}trajectory", TrajectoryRecord, text)
            )
        case "rollouts":
            named = _named("task", TaskRecord, text) | begins("instance", text)
            return _id(tab, part, _ID, value, now) | named
        case "trajectories":
            return begins("name", text) | _named("task", TaskRecord, text)
    return begins("name", text)


_ID: Final = Field(name="id", kind=FieldKind.TEXT, says="", column="id")

#: Tab (empty: any) and field → its condition.
_SPECIAL: Final[dict[tuple[str, str], Callable[[Tab, RowPart, Field, Value, float], Q]]] = {
    ("", ""): _word,
    ("", "state"): _state,
    ("", "since"): _since,
    ("", "until"): _until,
    ("", "task"): _task,
    ("", "id"): _id,
    ("", "pool"): _pool,
    ("actions", "outcome"): _outcome,
    ("rollouts", "outcome"): _outcome,
    ("actions", "exit"): _exit,
    ("actions", "trajectory"): _trajectory,
    ("actions", "waits"): _waits,
    ("actions", "door"): _door,
    ("rollouts", "door"): _door,
    ("rollouts", "lane"): _lane,
}
