"""Pages of problems: their kinds, the acknowledgement of one, and the trends of resources."""

from __future__ import annotations

from time import time
from typing import Any, Final

import redis
from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render

from tangram_web.accounts.access import require, role_everywhere
from tangram_web.accounts.models import Role
from tangram_web.audit.services import record
from tangram_web.dashboard.file_responses import json_response
from tangram_web.lib import bus
from tangram_web.live.access import Sight, sight_of
from tangram_web.problems.judge import Acknowledgement, ProblemState
from tangram_web.problems.kinds import KINDS
from tangram_web.problems.reading import ProblemRow, problems_for
from tangram_web.problems.stored import ProblemStore
from tangram_web.problems.thresholds import PREFIX
from tangram_web.problems.trends import TREND_POINTS, TREND_RANGES, TrendStore

MOST_NOTE: Final = 300


def kinds(request: HttpRequest, sight: Sight) -> dict[str, Any]:
    """Show what is checked, when it is a problem, and what to do."""
    del request, sight
    return {
        "kinds": [
            {
                "key": kind.key,
                "name": kind.name,
                "severity": kind.severity.value,
                "means": kind.means,
                "raised": kind.raised,
                "cleared": kind.cleared,
                "raise_seconds": kind.raise_seconds,
                "clear_seconds": kind.clear_seconds,
                "to_do": kind.to_do.replace("[operations.md](operations.md)", "docs/operations.md"),
                "settings": [
                    (f"{PREFIX}{name.upper()}", f"{getattr(settings.TANGRAM_PROBLEMS, name):g}")
                    for name in kind.thresholds
                ],
            }
            for kind in KINDS
        ]
    }


def trends(request: HttpRequest, sight: Sight) -> HttpResponse:
    """Answer with the trend of each resource over a longer range, ``?trend=SECONDS``; null where none was measured.

    Trends are of all projects: readers of some projects get none.
    """
    steps = {str(seconds): seconds / TREND_POINTS for seconds, _ in TREND_RANGES[1:]}
    step = steps.get(request.GET.get("trend", next(iter(steps))))
    if step is None:
        return json_response({"detail": f"trend is one of {', '.join(steps)}"}, 400)
    if not sight.everything:
        return json_response({"step_seconds": step, "rows": {}})
    try:
        stored = TrendStore(bus.impatient_client(), bus.keys()).load()
    except redis.RedisError as error:
        return json_response({"detail": f"redis does not answer: {error}"}, 503)
    found = next((each.rows(time()) for each in stored if each.step_seconds == step), {})
    return json_response({"step_seconds": step, "rows": found})


def trend_links(query: QueryDict) -> list[dict[str, Any]]:
    """Return the choices of the range of trends as links that keep the rest of the address."""
    chosen, links = query.get("trend", ""), []
    known = {str(seconds) for seconds, _ in TREND_RANGES[1:]}
    for place, (seconds, name) in enumerate(TREND_RANGES):
        given = query.copy()
        given.pop("trend", None)
        if place:
            given["trend"] = str(seconds)
        current = chosen == str(seconds) if chosen in known else not place
        links.append({"name": name, "query": given.urlencode(), "current": current})
    return links


def acknowledge(request: HttpRequest) -> HttpResponse:
    """Acknowledge a problem with a note: it stays listed and leaves the banner."""
    given = request.POST if request.method == "POST" else request.GET
    row = _found(request, given.get("problem", ""))
    if row is None:
        return render(request, "problems/acknowledge.html", {"row": None})
    note = given.get("note", "").strip()
    wrong = ""
    if request.method == "POST":
        if not note or len(note) > MOST_NOTE:
            wrong = f"Give a note of 1 to {MOST_NOTE} characters."
        else:
            _store(request, row, note)
            messages.success(request, f"Acknowledged: {row.condition.title}.")
            return redirect("dashboard:overview")
    context = {"row": row, "note": note, "wrong": wrong}
    return render(request, "problems/acknowledge.html", context, status=422 if wrong else 200)


def _store(request: HttpRequest, row: ProblemRow, note: str) -> None:
    """Write the audit entry and the acknowledgement. Raises Unavailable; then neither is written."""
    said = Acknowledgement(
        by=request.user.get_username(), note=note, at=time(), incident=row.raised_at
    )
    with transaction.atomic():
        record(
            request,
            "acknowledge",
            f"problem/{row.id}",
            {"state": row.state},
            {"state": ProblemState.ACKNOWLEDGED.value, "note": note},
            project=row.condition.project,
        )
        ProblemStore(bus.redis_client(), bus.keys()).acknowledge(row.id, said)


def _found(request: HttpRequest, problem: str) -> ProblemRow | None:
    """Return a problem that is raised and that the reader sees; None: it is cleared, or hidden.

    Raises Http404 and PermissionDenied for a reader who does not operate what it concerns.
    """
    rows = problems_for(sight_of(request.user)).rows
    row = next((each for each in rows if each.id == problem and not each.is_over), None)
    if row is None:
        return None
    if row.condition.project:
        require(request.user, row.condition.project, Role.OPERATOR)
    elif role_everywhere(request.user) is None:
        raise PermissionDenied("this concerns all projects: it is for operators of every project")
    return row
