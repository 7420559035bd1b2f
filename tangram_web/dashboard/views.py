"""The pages. Each view asks one selector or service and renders."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, cast

import msgspec
from django.contrib.auth import login
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from domain.action import ActionState, Outcome
from tangram_web.dashboard import selectors, services
from tangram_web.dashboard.lifecycle import phases_of
from tangram_web.live.access import may_watch
from tangram_web.records.selectors import view_of

P = ParamSpec("P")
View = Callable[Concatenate[HttpRequest, P], HttpResponse]


def for_watchers(view: View[P]) -> View[P]:
    """Ask people to sign in, and turn away those who may not watch."""

    @wraps(view)
    def guarded(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        if may_watch(request.user):
            return view(request, *args, **kwargs)
        return _refuse(request, "Not permitted", "The console is for staff accounts.", 403)

    return login_required(guarded)


@require_safe
@for_watchers
def overview(request: HttpRequest) -> HttpResponse:
    """Show the live page; its data come over the websocket."""
    return render(request, "dashboard/overview.html", {"page": "overview"})


@require_safe
@never_cache
def enter(request: HttpRequest) -> HttpResponse:
    """Sign in by the link that ``tangram up`` printed."""
    user = services.claim_entry(request.GET.get("token", ""))
    if user is None:
        cure = "Links work once and for ten minutes. Start again for a new one, or sign in."
        return _refuse(request, "This link is used up", cure, 403)
    login(request, cast("User", user), backend="django.contrib.auth.backends.ModelBackend")
    return redirect("dashboard:overview")


@require_safe
@for_watchers
def actions(request: HttpRequest) -> HttpResponse:
    """Show actions, newest first."""
    context = {
        "page": "actions",
        "found": selectors.action_page(request.GET),
        "states": list(ActionState),
        "outcomes": list(Outcome),
    }
    return render(request, "dashboard/actions.html", context)


@require_safe
@for_watchers
def action(request: HttpRequest, action_id: str) -> HttpResponse:
    """Show one action: its life, what it got, what it left."""
    record = selectors.action_record(action_id)
    if record is None:
        missing = {"page": "actions", "action_id": action_id}
        return render(request, "dashboard/no_action.html", missing, status=404)
    raw = msgspec.json.format(msgspec.json.encode(view_of(record)), indent=2).decode()
    context = {
        "page": "actions",
        "action": record,
        "phases": phases_of(record, timezone.now()),
        "raw": raw,
    }
    return render(request, "dashboard/action.html", context)


def _refuse(request: HttpRequest, title: str, cure: str, status: int) -> HttpResponse:
    context = {"title": title, "cure": cure}
    return render(request, "dashboard/refused.html", context, status=status)
