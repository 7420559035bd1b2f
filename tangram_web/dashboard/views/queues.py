"""Queues: waiting actions by what they need, why the next one waits, and shares of projects."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from tangram_web.dashboard.scheduler_selectors import asked, queues_seen_by, shares_seen_by
from tangram_web.lib import scheduler_client
from tangram_web.live.access import Sight


def queues(request: HttpRequest, sight: Sight) -> dict[str, Any]:
    """Show the queues as the scheduler has them now."""
    found, problem = asked(lambda: queues_seen_by(sight))
    status, _ = asked(scheduler_client.status)
    shares = [] if status is None else shares_seen_by(sight, status)
    return {"found": found, "shares": shares, "problem": problem}
