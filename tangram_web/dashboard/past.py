"""The past as charts draw it: what the rings hold, and when the configuration changed."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from time import time
from typing import Any, Final

import msgspec
import redis
from django.http import HttpRequest, HttpResponse, QueryDict
from django.views.decorators.http import require_safe

from tangram_web.dashboard.guards import for_viewers
from tangram_web.dashboard.scopes import project_of
from tangram_web.lib import bus
from tangram_web.live.access import Sight
from tangram_web.live.rollups.projects import IDLE_SECONDS, MAX_PROJECTS, PROJECT_SIZES
from tangram_web.live.rollups.query import RangeResult, query_range
from tangram_web.live.rollups.rollup import RETAINED, SIZES
from tangram_web.live.rollups.store import RollupStore
from tangram_web.pools.models import ConfigRevision

#: The choices of the range picker: seconds and their name.
RANGES: Final = (
    (900, "15 min"), (3600, "1 h"), (21_600, "6 h"), (86_400, "24 h"), (604_800, "7 d"),
    (1_209_600, "14 d"),
)  # fmt: skip
LONGEST_SECONDS: Final = max(step * length for step, length in RETAINED.items())
#: Revisions marked on one chart, the newest ones.
MARKS: Final = 200
_JSON: Final = "application/json"


@require_safe
@for_viewers
def history(request: HttpRequest, sight: Sight) -> HttpResponse:
    """Answer with the points of a range, what it was as a whole, and the marks on it.

    Of one project where the address names one, and for those who may not see all of them.
    """
    now, project = time(), project_of(sight, request.GET)
    if project is None:
        return as_json({"detail": "no such project"}, 404)
    span = span_of(request.GET, now)
    if isinstance(span, str):
        return as_json({"detail": span}, 400)
    first, last = span
    try:
        recalled = recalled_of(first, last, now, project)
        note = not_kept(project)
    except redis.RedisError as error:
        return as_json({"detail": f"redis does not answer: {error}"}, 503)
    # Revisions are of the configuration, which members of some projects do not see.
    marks = marks_of(first, last) if sight.everything else []
    body = msgspec.structs.asdict(recalled) | {"marks": marks, "note": note}
    return as_json(body, 200)


def span_of(query: QueryDict, now: float) -> tuple[float, float] | str:
    """Return the stretch of wall clock that an address asks for, or what is wrong with it."""
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
    """Return what is known of a range, of one project or all. Raises redis.RedisError."""
    read = partial(RollupStore(bus.redis_client(), bus.keys()).read, project=project)
    recalled = query_range(read, first, last, now, PROJECT_SIZES if project else SIZES)
    if project:
        recalled.columns.pop("cores", None)  # nobody counts the cores of one project by second
    return recalled


def not_kept(project: str) -> str:
    """Return why there is no past of a project; empty where there is. Raises redis.RedisError."""
    if not project or RollupStore(bus.redis_client(), bus.keys()).has_project(project):
        return ""
    return (
        f"No past of project {project} is kept: there are {MAX_PROJECTS} places, and it gets one with its "
        "next action where one is free, or was of a project without actions for "
        f"{IDLE_SECONDS / 60:.0f} minutes."
    )


def marks_of(first: float, last: float) -> list[dict[str, Any]]:
    """Return the revisions of the configuration that came in force in a range, oldest first."""
    span = [datetime.fromtimestamp(at, UTC) for at in (first, last)]
    found = ConfigRevision.objects.filter(created_at__range=span).order_by("-number")
    rows = found.values_list("number", "author", "created_at")[:MARKS]
    return [
        {"revision": number, "author": author, "at": at.timestamp()}
        for number, author, at in reversed(rows)
    ]


def as_json(body: Any, status: int) -> HttpResponse:
    """Answer with JSON."""
    return HttpResponse(msgspec.json.encode(body), content_type=_JSON, status=status)
