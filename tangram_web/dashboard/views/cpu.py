"""CPU map: the cores of every node by NUMA node, with their holders."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse

from tangram_web.dashboard.guards import refuse
from tangram_web.dashboard.project_choice import project_choice_of
from tangram_web.dashboard.resource_selectors import holders_of
from tangram_web.live.access import Sight


def cpu(request: HttpRequest, sight: Sight) -> dict[str, Any] | HttpResponse:
    """Show the map; its picture is live, its table is from the newest frames."""
    choice = project_choice_of(sight, request.GET)
    if choice is None:
        return refuse(request, "No such project", "Choose one of yours.", 404)
    offered, holders = holders_of(choice.sight(sight), "cpu")
    return {
        "scope": choice,
        "kind": "cpu",
        "says": "node → NUMA node → core; reserved cores are left out",
        "empty": "No node has joined. Start a worker on one:",
        "command": "./tangram up",
        "some": offered,
        "holders": holders,
    }
