"""Pages of problems: their kinds, and the acknowledgement of one."""

from __future__ import annotations

from time import time
from typing import Any, Final

import redis
from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from domain.errors import Unavailable
from tangram_web.accounts.access import require, role_everywhere
from tangram_web.accounts.models import Role
from tangram_web.audit.services import record
from tangram_web.lib import bus
from tangram_web.live.access import Sight, sight_of
from tangram_web.problems.judge import Acknowledgement, ProblemState
from tangram_web.problems.kinds import KINDS
from tangram_web.problems.reading import ProblemRow, problems_for
from tangram_web.problems.stored import ProblemStore
from tangram_web.problems.thresholds import PREFIX

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
        try:
            ProblemStore(bus.redis_client(), bus.keys()).acknowledge(row.id, said)
        except redis.RedisError as error:
            raise Unavailable(f"redis does not answer: {error}") from error


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
