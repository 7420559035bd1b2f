"""Overview: the live page. Frames arrive over a websocket, a range of the past by request."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse

from tangram_web.dashboard.guards import refuse
from tangram_web.dashboard.history_query import RANGES
from tangram_web.dashboard.project_choice import project_choice_of
from tangram_web.live.access import Sight
from tangram_web.problems.page import situation_of
from tangram_web.problems.views import trend_links


def overview(request: HttpRequest, sight: Sight) -> dict[str, Any] | HttpResponse:
    """Show what is wrong, what is short and how fast actions complete, of one project or of all."""
    choice = project_choice_of(sight, request.GET)
    if choice is None:
        return refuse(request, "No such project", "Choose one of yours.", 404)
    kept = {"project": choice.project, "trend": request.GET.get("trend", "")}
    return situation_of(request, sight, choice.project) | {
        "scope": choice,
        "ranges": RANGES,
        "range": request.GET.get("range", ""),
        # Ends addresses of other ranges: what they keep.
        "of": "".join(f"&{urlencode({name: value})}" for name, value in kept.items() if value),
        "trends": [] if choice.project else trend_links(request.GET),
        "frozen": "to" in request.GET,
    }
