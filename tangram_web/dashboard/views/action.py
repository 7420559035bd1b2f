"""One action: its phases, request, grant and result, and why it waits."""

from __future__ import annotations

from typing import Any

import msgspec
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

from domain.action import ActionState
from tangram_web.accounts.access import included_roles
from tangram_web.dashboard import selectors
from tangram_web.dashboard.costs import cost_of_action
from tangram_web.dashboard.scheduler_selectors import why_waiting
from tangram_web.dashboard.timeline import phases_of
from tangram_web.live.access import Sight
from tangram_web.records.selectors import view_of


def action(request: HttpRequest, sight: Sight, action_id: str) -> dict[str, Any] | HttpResponse:
    """Show an action from its row; ask the scheduler why it waits while it is queued."""
    record = selectors.action_record(sight, action_id)
    if record is None:
        missing = {"action_id": action_id}
        return render(request, "dashboard/no_action.html", missing, status=404)
    waiting, problem = (None, "")
    if record.state == ActionState.QUEUED:
        waiting, problem = why_waiting(sight, record)
    raw = msgspec.json.format(msgspec.json.encode(view_of(record)), indent=2).decode()
    return {
        "action": record,
        "phases": phases_of(record, timezone.now()),
        "waiting": waiting,
        "problem": problem,
        "raw": raw,
        "costs": cost_of_action(record),
        "powers": included_roles(request.user, record.project),
    }
