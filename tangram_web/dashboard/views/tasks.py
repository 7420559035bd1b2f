"""Tasks: the list, the latest opened first."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from tangram_web.dashboard.selectors import task_page
from tangram_web.live.access import Sight


def tasks(request: HttpRequest, sight: Sight) -> dict[str, Any]:
    """Show one page of the list."""
    return {"found": task_page(sight, request.GET)}
