"""Ranges of the past for charts: points from the stored history, and marks of revisions."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import numpy as np
from django.http import QueryDict
from numpy.typing import NDArray

from tangram_web.lib import bus
from tangram_web.live.rollups.histogram import PHASES
from tangram_web.live.rollups.projects import IDLE_SECONDS, MAX_PROJECTS, PROJECT_SIZES
from tangram_web.live.rollups.query import RangeResult, query_histogram, query_range
from tangram_web.live.rollups.rollup import RETAINED, SIZES
from tangram_web.live.rollups.store import RollupStore
from tangram_web.pools.models import ConfigRevision

#: The choices of the range picker: seconds and their name.
RANGES: Final = (
    (900, "15 min"), (3600, "1 h"), (21_600, "6 h"), (86_400, "24 h"), (604_800, "7 d"),
    (1_209_600, "14 d"),
)  # fmt: skip
LONGEST_SECONDS: Final = max(step * length for step, length in RETAINED.items())
#: Most revisions marked on one chart, the newest ones.
MARKS: Final = 200


def span_of(query: QueryDict, now: float) -> tuple[float, float] | str:
    """Return first and last second since 1970 of the range in a query, or what is wrong with it."""
    try:
        seconds, last = float(query.get("range", "3600")), float(query.get("to", now))
    except ValueError:
        return "range and to are numbers of seconds"
    if not 1 <= seconds <= LONGEST_SECONDS:
        return f"range is 1 to {LONGEST_SECONDS} seconds"
    if not 0 <= last <= now + 60:
        return "to is an instant of the past, in seconds since 1970"
    return last - seconds, last


def recalled_of(first: float, last: float, now: float, project: str = "") -> RangeResult:
    """Return the points of a range, of one project or of all. Raises redis.RedisError."""
    read = partial(RollupStore(bus.redis_client(), bus.keys()).read, project=project)
    recalled = query_range(read, first, last, now, PROJECT_SIZES if project else SIZES)
    if project:
        recalled.columns.pop("cores", None)  # cores are not counted per project and second
    return recalled


def binned_of(
    first: float, last: float, now: float, project: str = ""
) -> dict[str, NDArray[np.int64]]:
    """Return the histogram of each phase over a range; its bins are those of `rollups.histogram`.

    Raises redis.RedisError.
    """
    read = partial(RollupStore(bus.redis_client(), bus.keys()).read, project=project)
    found = query_histogram(read, first, last, now, PROJECT_SIZES if project else SIZES)
    return dict(zip(PHASES, found.counts, strict=True))


def not_kept(project: str) -> str:
    """Return why no history of a project is stored; empty where it is. Raises redis.RedisError."""
    if not project or RollupStore(bus.redis_client(), bus.keys()).has_project(project):
        return ""
    return (
        f"No history of project {project} is stored: {MAX_PROJECTS} projects have one. It starts with the "
        "project's next action, as soon as another project had no action for "
        f"{IDLE_SECONDS / 60:.0f} minutes."
    )


def marks_of(first: float, last: float) -> list[dict[str, Any]]:
    """Return the revisions of the configuration that began in a range, oldest first."""
    span = [datetime.fromtimestamp(at, UTC) for at in (first, last)]
    found = ConfigRevision.objects.filter(created_at__range=span).order_by("-number")
    rows = found.values_list("number", "author", "created_at")[:MARKS]
    return [
        {"revision": number, "author": author, "at": at.timestamp()}
        for number, author, at in reversed(rows)
    ]
