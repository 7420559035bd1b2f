"""Trajectories: the list, the latest opened first."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from tangram_web.dashboard.selectors import trajectory_page
from tangram_web.live.access import Sight
from tangram_web.records.models import TrajectoryRecordState


def trajectories(request: HttpRequest, sight: Sight) -> dict[str, Any]:
    """Show one page of the list."""
    return {"found": trajectory_page(sight, request.GET), "states": TrajectoryRecordState.values}
