"""APIs: limits, quotas and shares of every resource that is counted over the whole cluster."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from tangram_web.dashboard.resource_selectors import api_rows, resource_addresses, standing_of
from tangram_web.dashboard.scheduler_selectors import asked, queues_seen_by, shares_seen_by
from tangram_web.lib import scheduler_client
from tangram_web.live.access import Sight


def apis(request: HttpRequest, sight: Sight) -> dict[str, Any]:
    """Show the resources as the scheduler has them now."""
    status, problem = asked(scheduler_client.status)
    found, _ = asked(lambda: queues_seen_by(sight))
    resources = {} if status is None else status["resources"]
    shares = [] if status is None else shares_seen_by(sight, status)
    rows = api_rows(resources, resource_addresses(sight), found, shares)
    return {
        "problem": problem,
        "apis": [{**row, "standing": standing_of(row)} for row in rows],
    }
