"""The pages. Each view asks one selector or service and renders."""

from __future__ import annotations

from typing import cast
from urllib.parse import urlencode

import msgspec
from django.contrib.auth import login
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from domain.action import ActionState, Outcome
from tangram_web.accounts.access import included_roles
from tangram_web.dashboard import past, selectors, services
from tangram_web.dashboard.costs import cost_of_action
from tangram_web.dashboard.guards import for_viewers, refuse
from tangram_web.dashboard.insight import why_waiting
from tangram_web.dashboard.lifecycle import phases_of
from tangram_web.dashboard.scopes import scope_of
from tangram_web.live.access import Sight
from tangram_web.records.selectors import view_of


@require_safe
@for_viewers
def overview(request: HttpRequest, sight: Sight) -> HttpResponse:
    """Show the live page; its data come over the websocket, a range of the past by request."""
    scope = scope_of(sight, request.GET)
    if scope is None:
        return refuse(request, "No such project", "Choose one of yours.", 404)
    context = {
        "page": "overview",
        "scope": scope,
        "ranges": past.RANGES,
        "range": request.GET.get("range", ""),
        "of": f"&{urlencode({'project': scope.project})}" if scope.project else "",
        "frozen": "to" in request.GET,
    }
    return render(request, "dashboard/overview.html", context)


@require_safe
@never_cache
def enter(request: HttpRequest) -> HttpResponse:
    """Sign in by the link that ``tangram up`` printed."""
    user = services.claim_entry(request.GET.get("token", ""))
    if user is None:
        cure = "Links work once and for ten minutes. Start again for a new one, or sign in."
        return refuse(request, "This link is used up", cure, 403)
    login(request, cast("User", user), backend="django.contrib.auth.backends.ModelBackend")
    return redirect("dashboard:overview")


@require_safe
@for_viewers
def actions(request: HttpRequest, sight: Sight) -> HttpResponse:
    """Show actions, newest first."""
    context = {
        "page": "actions",
        "found": selectors.action_page(sight, request.GET),
        "states": list(ActionState),
        "outcomes": list(Outcome),
    }
    return render(request, "dashboard/actions.html", context)


@require_safe
@for_viewers
def action(request: HttpRequest, sight: Sight, action_id: str) -> HttpResponse:
    """Show one action: its life, what it got, what it left."""
    record = selectors.action_record(sight, action_id)
    if record is None:
        missing = {"page": "actions", "action_id": action_id}
        return render(request, "dashboard/no_action.html", missing, status=404)
    waiting, problem = (None, "")
    if record.state == ActionState.QUEUED:
        waiting, problem = why_waiting(sight, record)
    raw = msgspec.json.format(msgspec.json.encode(view_of(record)), indent=2).decode()
    context = {
        "page": "actions",
        "action": record,
        "phases": phases_of(record, timezone.now()),
        "waiting": waiting,
        "problem": problem,
        "raw": raw,
        "costs": cost_of_action(record),
        "powers": included_roles(request.user, record.project),
    }
    return render(request, "dashboard/action.html", context)
