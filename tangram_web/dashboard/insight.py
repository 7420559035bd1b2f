"""Pages that ask the scheduler: queues, decisions, workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import redis
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from domain.errors import Unavailable
from domain.wire import WaitView
from tangram_web.dashboard.guards import for_watchers
from tangram_web.lib import ask, bus
from tangram_web.metrics.standing import read_standing
from tangram_web.metrics.views import READERS
from tangram_web.records.models import ActionRecord

T = TypeVar("T")


@require_safe
@for_watchers
def queues(request: HttpRequest) -> HttpResponse:
    """Show every line of waiting actions, and what the next one of it waits for."""
    found, problem = asked(ask.queues)
    status, _ = asked(ask.status)
    shares = [] if status is None else status.get("shares", [])
    context = {"page": "queues", "found": found, "shares": shares, "problem": problem}
    return render(request, "dashboard/queues.html", context)


@require_safe
@for_watchers
def decisions(request: HttpRequest) -> HttpResponse:
    """Show what policies decided lately, and what else they looked at."""
    found, problem = asked(ask.decisions)
    context = {"page": "decisions", "found": found, "problem": problem}
    return render(request, "dashboard/decisions.html", context)


@require_safe
@for_watchers
def workers(request: HttpRequest) -> HttpResponse:
    """Show who is alive, who leads, and who is behind."""
    status, problem = asked(ask.status)
    try:
        standing = read_standing(bus.redis_client(), bus.keys(), READERS)
    except redis.RedisError as error:
        standing, problem = None, f"redis does not answer: {error}"
    context = {"page": "workers", "status": status, "standing": standing, "problem": problem}
    return render(request, "dashboard/workers.html", context)


def why_waiting(record: ActionRecord) -> tuple[WaitView | None, str]:
    """Return why a queued action waits, and what keeps us from knowing."""
    live, problem = asked(lambda: ask.live_action(record.id))
    return (None if live is None else live.waiting), problem


def asked(question: Callable[[], T]) -> tuple[T | None, str]:
    """Return an answer of the scheduler, or why there is none."""
    try:
        return question(), ""
    except Unavailable as error:
        return None, str(error)
