"""Tables for export: each yields pages of dicts with the same members.

One page is in memory at a time, however long the table. Pages are read by key, so rows that are
inserted meanwhile shift nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from time import time
from typing import Any, Final

import msgspec
import redis
from django.db.models import Model, QuerySet
from django.http import QueryDict

from domain.errors import Unavailable
from tangram_web.audit import selectors as entries
from tangram_web.audit.models import AuditEntry
from tangram_web.dashboard import selectors
from tangram_web.dashboard.history_query import recalled_of, span_of
from tangram_web.dashboard.project_choice import project_of
from tangram_web.dashboard.recent_decisions import filtered_decisions
from tangram_web.dashboard.resource_selectors import api_rows, holders_of
from tangram_web.dashboard.scheduler_selectors import queues_seen_by, shares_seen_by
from tangram_web.lib import bus, scheduler_client
from tangram_web.live.access import Sight
from tangram_web.live.rollups.query import point_rows
from tangram_web.metrics.reading import READERS, read_system
from tangram_web.pools.selectors import current_config

#: Rows of one page.
PAGE: Final = 1000
_ACTION: Final = (
    "id", "project", "task", "trajectory", "pool", "kind", "family", "step", "group", "priority",
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

Rows = Iterable[list[dict[str, Any]]]
Table = Callable[[Sight, QueryDict], Rows]


class NoSuchRange(ValueError):
    """The query asks for a range that cannot exist."""


def actions(sight: Sight, query: QueryDict) -> Rows:
    """Yield actions, newest first, as their page filters them."""
    return _by_key(selectors.filtered_actions(sight, query), "id", _ACTION)


def trajectories(sight: Sight, query: QueryDict) -> Rows:
    """Yield trajectories by key, as their page filters them."""
    return _by_key(selectors.filtered_trajectories(sight, query), "key", _TRAJECTORY)


def tasks(sight: Sight, query: QueryDict) -> Rows:
    """Yield tasks by key, as their page filters them."""
    return _by_key(selectors.filtered_tasks(sight, query), "key", _TASK)


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
    yield api_rows(status["resources"], current_config(), queues_seen_by(sight), shares)


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


def audit(_: Sight, query: QueryDict) -> Rows:
    """Yield the audit, newest first, as its page filters it. Raises Mistake."""
    try:
        rows = entries.filtered(AuditEntry.objects.all(), query)
    except entries.AuditFilterError as error:
        raise selectors.ImpossibleFilter(str(error)) from error
    return _by_key(rows, "id", entries.COLUMNS)


TABLES: Final[dict[str, Table]] = {
    table.__name__: table
    for table in (
        actions, trajectories, tasks, queues, decisions, workers, cores, gpus, apis, history, audit,
    )
}  # fmt: skip
#: Tables that show all projects at once.
OF_ALL: Final = frozenset({"decisions", "workers", "audit"})


def _by_key(rows: QuerySet[Any, Model], key: str, columns: tuple[str, ...]) -> Iterator[Any]:
    values = rows.order_by(f"-{key}").values(*columns)
    page = list(values[:PAGE])
    while page:
        yield page
        page = list(values.filter(**{f"{key}__lt": page[-1][key]})[:PAGE])
