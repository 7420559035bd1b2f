"""Export: every table as a file: CSV, a JSON array, or one JSON object per line."""

from __future__ import annotations

import csv
import heapq
from collections.abc import Callable, Iterable, Iterator
from io import StringIO
from itertools import chain, islice
from operator import itemgetter
from time import time
from typing import Any, Final

import msgspec
import redis
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, QueryDict

from domain.errors import Unavailable
from tangram_web.accounts.access import audit_sight
from tangram_web.audit import selectors as entries
from tangram_web.dashboard import selectors
from tangram_web.dashboard.file_responses import streamed_file
from tangram_web.dashboard.guards import refuse
from tangram_web.dashboard.history_query import recalled_of, span_of
from tangram_web.dashboard.project_choice import project_of
from tangram_web.dashboard.recent_decisions import filtered_decisions
from tangram_web.dashboard.resource_selectors import api_rows, holders_of, resource_addresses
from tangram_web.dashboard.scheduler_selectors import queues_seen_by, shares_seen_by
from tangram_web.dashboard.selectors import ImpossibleFilter
from tangram_web.explorer.conditions import parts_of, rows_of
from tangram_web.explorer.fields import ACTIONS, ROLLOUTS, TASKS, TRAJECTORIES, Tab
from tangram_web.explorer.language import QueryError, parse
from tangram_web.explorer.old_addresses import query_of_old
from tangram_web.lib import bus, scheduler_client
from tangram_web.live.access import Sight
from tangram_web.live.rollups.query import point_rows
from tangram_web.metrics.reading import READERS, read_system

#: Rows of one page.
PAGE: Final = 1000
_ACTION: Final = (
    "id", "project", "task", "trajectory", "pool", "kind", "door", "family", "step", "group", "priority",
    "state", "outcome", "reward", "cost", "units", "node", "attempt", "exit_code", "detail",
    "submitted_at", "granted_at", "started_at", "finished_at", "queue_seconds",
    "overhead_seconds", "execution_seconds", "act_seconds",
)  # fmt: skip
_COSTS: Final = (
    "asked_core_seconds", "granted_core_seconds", "measured_core_seconds", "used_core_seconds",
    "asked_gpu_seconds", "granted_gpu_seconds", "peak_cores", "peak_gpus",
)  # fmt: skip
_TRAJECTORY: Final = (
    "key", "project", "name", "task", "pool", "node", "state", "opened_at", "finished_at",
    "environment_removed_at", "actions", "finished", "external_seconds", *_COSTS,
)  # fmt: skip
_TASK: Final = (
    "key", "project", "name", "pool", "opened_at", "actions", "finished", "external_seconds",
    *_COSTS,
)  # fmt: skip
_ROLLOUT: Final = (
    "id", "project", "task", "handler", "instance", "group", "sample", "llm", "door", "priority", "state",
    "outcome", "reward", "reason", "worker", "attempt", "stage", "queued", "turns", "tokens",
    "prompt_tokens", "response_tokens", "first_version", "last_version", "parked_times",
    "submitted_at", "began_at", "finished_at", "queue_seconds", "total_seconds", "times",
)  # fmt: skip

Rows = Iterable[list[dict[str, Any]]]
Table = Callable[[Sight, QueryDict], Rows]


class NoSuchRange(ValueError):
    """The query asks for a range that cannot exist."""


def actions(sight: Sight, query: QueryDict) -> Rows:
    """Yield actions, newest first, as their page filters them."""
    return _selected(ACTIONS, "id", sight, query, _ACTION)


def trajectories(sight: Sight, query: QueryDict) -> Rows:
    """Yield trajectories by key, as their page filters them."""
    return _selected(TRAJECTORIES, "key", sight, query, _TRAJECTORY)


def tasks(sight: Sight, query: QueryDict) -> Rows:
    """Yield tasks by key, as their page filters them."""
    return _selected(TASKS, "key", sight, query, _TASK)


def rollouts(sight: Sight, query: QueryDict) -> Rows:
    """Yield rollouts, newest first, as their page filters them. Raises ImpossibleFilter."""
    return _selected(ROLLOUTS, "id", sight, query, _ROLLOUT)


def queues(sight: Sight, _: QueryDict) -> Rows:
    """Yield the queues. Raises Unavailable."""
    yield [msgspec.to_builtins(queue) for queue in queues_seen_by(sight).items]


def decisions(_: Sight, query: QueryDict) -> Rows:
    """Yield the latest decisions of policies, as their page filters them. Raises Unavailable."""
    yield [msgspec.to_builtins(one) for one in filtered_decisions(query)]


def workers(_: Sight, __: QueryDict) -> Rows:
    """Yield the workers with a current heartbeat. Raises Unavailable."""
    try:
        yield read_system(bus.redis_client(), bus.keys(), READERS).workers
    except redis.RedisError as error:
        raise Unavailable(f"redis does not answer: {error}") from error


def cores(sight: Sight, _: QueryDict) -> Rows:
    """Yield the holders of cores."""
    yield holders_of(sight, "cpu")[1]


def gpus(sight: Sight, _: QueryDict) -> Rows:
    """Yield the holders of GPUs."""
    yield holders_of(sight, "gpu")[1]


def apis(sight: Sight, _: QueryDict) -> Rows:
    """Yield APIs and other counted resources. Raises Unavailable."""
    status = scheduler_client.status()
    shares = shares_seen_by(sight, status)
    yield api_rows(status["resources"], resource_addresses(sight), queues_seen_by(sight), shares)


def history(sight: Sight, query: QueryDict) -> Rows:
    """Yield the points of a range, of one project or all. Raises NoSuchRange, Unavailable."""
    now, project = time(), project_of(sight, query)
    if project is None:
        raise NoSuchRange("there is no such project")
    span = span_of(query, now)
    if isinstance(span, str):
        raise NoSuchRange(span)
    try:
        yield list(point_rows(recalled_of(*span, now, project)))
    except redis.RedisError as error:
        raise Unavailable(f"redis does not answer: {error}") from error


def audit(sight: Sight, query: QueryDict) -> Rows:
    """Yield the audit, newest first, as its page filters it. Raises ImpossibleFilter."""
    try:
        rows = entries.filtered(entries.entries_of(sight.projects), query)
    except entries.AuditFilterError as error:
        raise selectors.ImpossibleFilter(str(error)) from error
    return _by_key(rows, "id", entries.COLUMNS)


TABLES: Final[dict[str, Table]] = {
    table.__name__: table
    for table in (
        actions, trajectories, tasks, rollouts, queues, decisions, workers, cores, gpus, apis, history, audit,
    )
}  # fmt: skip
#: Tables that show all projects at once.
OF_ALL: Final = frozenset({"decisions", "workers"})


def _selected(tab: Tab, key: str, sight: Sight, query: QueryDict, columns: tuple[str, ...]) -> Rows:
    """Yield the rows that a list shows at this address, latest key first. Raises ImpossibleFilter."""
    text = query.get("q") if "q" in query else query_of_old(tab, query)
    try:
        parsed = parse(tab, text or "")
    except QueryError as error:
        raise selectors.ImpossibleFilter(str(error)) from error
    now = time()
    parts = [
        _by_key(rows_of(tab, part, parsed, sight, now), key, columns) for part in parts_of(tab)
    ]
    if len(parts) == 1:
        return parts[0]
    rows = [chain.from_iterable(pages) for pages in parts]
    return _in_pages(heapq.merge(*rows, key=itemgetter(key), reverse=True))


def _in_pages(rows: Iterator[dict[str, Any]]) -> Rows:
    while page := list(islice(rows, PAGE)):
        yield page


def _by_key(rows: QuerySet[Any, Model], key: str, columns: tuple[str, ...]) -> Iterator[Any]:
    values = rows.order_by(f"-{key}").values(*columns)
    page = list(values[:PAGE])
    while page:
        yield page
        page = list(values.filter(**{f"{key}__lt": page[-1][key]})[:PAGE])


TYPES: Final = {
    "csv": "text/csv; charset=utf-8",
    "json": "application/json",
    "ndjson": "application/x-ndjson",
}
#: A spreadsheet reads a cell that begins with one of these as a formula, also behind blanks.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\0", "＝", "＋", "－", "＠")

_encode = msgspec.json.Encoder().encode


def export(request: HttpRequest, sight: Sight, name: str, form: str) -> HttpResponse:
    """Answer with a table as a file, filtered as its page is by the same query string."""
    there = [name for name in TABLES if sight.everything or name not in OF_ALL]
    if name not in there or form not in TYPES:
        return refuse(request, "No such table", f"There are {', '.join(there)}.", 404)
    if name == audit.__name__:
        sight = audit_sight(request.user, sight)
    try:
        pages = _begun(TABLES[name](sight, request.GET))
    except (ImpossibleFilter, NoSuchRange) as error:
        return refuse(request, "No such rows", f"{error}.", 400)
    except Unavailable as error:
        return refuse(request, "Not available now", f"{error}.", 503)
    return streamed_file(request, WRITERS[form](pages), f"{name}.{form}", TYPES[form])


def _begun(pages: Rows) -> Rows:
    """Return ``pages`` with the first one read, so that an error becomes a status code."""
    rest = iter(pages)
    first = next(rest, None)
    return () if first is None else chain([first], rest)


def as_csv(pages: Rows) -> Iterator[str]:
    """Yield CSV (RFC 4180) with a header; values that are no scalars are JSON."""
    head: list[str] = []
    for page in pages:
        lines = StringIO()
        writer = csv.writer(lines)
        if not head and page:
            head = list(page[0])
            writer.writerow(head)
        writer.writerows([_cell(row.get(name)) for name in head] for row in page)
        yield lines.getvalue()


def as_json(pages: Rows) -> Iterator[str]:
    """Yield one JSON array."""
    before = "["
    for page in pages:
        for row in page:
            yield before + _encode(row).decode()
            before = ",\n"
    yield "[]" if before == "[" else "]\n"


def as_ndjson(pages: Rows) -> Iterator[str]:
    """Yield one JSON object per line."""
    for page in pages:
        yield "".join(f"{_encode(row).decode()}\n" for row in page)


WRITERS: Final = {"csv": as_csv, "json": as_json, "ndjson": as_ndjson}


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    text = value if isinstance(value, str) else _encode(value).decode().strip('"')
    quoted = text.startswith(_FORMULA) or text.lstrip().startswith(_FORMULA)
    return f"'{text}" if quoted else text
