"""Actions: the list, newest first, filtered by the address."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from domain.action import ActionState, Outcome
from tangram_web.dashboard.selectors import action_page
from tangram_web.live.access import Sight


def actions(request: HttpRequest, sight: Sight) -> dict[str, Any]:
    """Show one page of the list."""
    return {
        "found": action_page(sight, request.GET),
        "states": list(ActionState),
        "outcomes": list(Outcome),
    }
