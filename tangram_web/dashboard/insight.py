"""Pages that ask the scheduler: queues, decisions, workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
import redis
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from contract.responses import QueuesResponse, WaitDetails
from domain.errors import Unavailable
from tangram_web.dashboard.decided import decided_page
from tangram_web.dashboard.guards import for_viewers, for_watchers
from tangram_web.dashboard.selectors import names_hidden_from
from tangram_web.lib import bus, scheduler_client
from tangram_web.lib.job_runs import JobRun, JobRuns
from tangram_web.live.access import Sight
from tangram_web.metrics.reading import READERS, read_system
from tangram_web.records.models import ActionRecord

T = TypeVar("T")


@require_safe
@for_viewers
def queues(request: HttpRequest, sight: Sight) -> HttpResponse:
    """Show every line of waiting actions, and what the next one of it waits for."""
    found, problem = asked(lambda: queues_seen_by(sight))
    status, _ = asked(scheduler_client.status)
    shares = [] if status is None else shares_seen_by(sight, status)
    context = {"page": "queues", "found": found, "shares": shares, "problem": problem}
    return render(request, "dashboard/queues.html", context)


@require_safe
@for_watchers
def decisions(request: HttpRequest) -> HttpResponse:
    """Show what policies decided lately, and what else they looked at."""
    found, problem = asked(lambda: decided_page(request.GET))
    context = {"page": "decisions", "found": found, "problem": problem}
    return render(request, "dashboard/decisions.html", context)


@require_safe
@for_watchers
def workers(request: HttpRequest) -> HttpResponse:
    """Show who is alive, who leads, and who is behind."""
    status, problem = asked(scheduler_client.status)
    runs: list[JobRun] = []
    try:
        standing = read_system(bus.redis_client(), bus.keys(), READERS)
        runs = JobRuns(bus.redis_client(), bus.keys()).all()
    except redis.RedisError as error:
        standing, problem = None, f"redis does not answer: {error}"
    context = {"page": "workers", "status": status, "standing": standing, "runs": runs,
               "problem": problem}  # fmt: skip
    return render(request, "dashboard/workers.html", context)


def why_waiting(sight: Sight, record: ActionRecord) -> tuple[WaitDetails | None, str]:
    """Return why a queued action waits, and what keeps us from knowing."""
    live, problem = asked(lambda: scheduler_client.live_action(record.id))
    if live is None or live.waiting is None:
        return None, problem
    return veiled(sight, [live.waiting])[0], problem


def queues_seen_by(sight: Sight) -> QueuesResponse:
    """Return the lines, or what of them belongs to projects that may be seen. Raises Unavailable."""
    found = (
        scheduler_client.queues()
        if sight.everything
        else scheduler_client.queues(projects=sight.projects)
    )
    for line, why in zip(found.items, veiled(sight, [one.why for one in found.items]), strict=True):
        line.why = why
    return found


def shares_seen_by(sight: Sight, status: dict[str, Any]) -> list[dict[str, Any]]:
    """Return how projects that may be seen stand with what they share."""
    return [share for share in status.get("shares", []) if sight.sees(share["project"])]


def veiled(sight: Sight, waits: Sequence[WaitDetails]) -> list[WaitDetails]:
    """Return ``waits`` without the names of actions that may not be seen."""
    hidden = names_hidden_from(sight, (why.blocked_by for why in waits if why.blocked_by))
    for why in waits:
        for idle in () if why.relief is None else why.relief.idle:
            if not sight.sees(idle.project):
                idle.project = idle.trajectory = ""
    return [_veiled(why) if why.blocked_by in hidden else why for why in waits]


def _veiled(why: WaitDetails) -> WaitDetails:
    reason = why.reason.replace(why.blocked_by or "", "an action of another project")
    return msgspec.structs.replace(why, reason=reason, blocked_by=None)


def asked(question: Callable[[], T]) -> tuple[T | None, str]:
    """Return an answer of the scheduler, or why there is none."""
    try:
        return question(), ""
    except Unavailable as error:
        return None, str(error)
