"""One task: its steps, its outcomes and its cost."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse

from tangram_web.accounts.access import included_roles
from tangram_web.dashboard import selectors
from tangram_web.dashboard.costs import bill_of_task
from tangram_web.dashboard.guards import refuse
from tangram_web.dashboard.training_parallelism import selectors_of
from tangram_web.dashboard.weights_versions import reward_columns, weights_versions
from tangram_web.live.access import Sight


def task(request: HttpRequest, sight: Sight, task_key: str) -> dict[str, Any] | HttpResponse:
    """Show a task from its rows."""
    record = selectors.task_record(sight, task_key)
    if record is None:
        return refuse(request, "No such task", "Tasks appear with their first action.", 404)
    versions = weights_versions(record)
    outcomes = selectors.outcomes_of(record)
    return {
        "task": record,
        "versions": versions,
        "rewards": reward_columns(versions),
        "selectors": selectors_of(record) if versions else [],
        "steps": selectors.steps_of(record),
        "outcomes": outcomes,
        "failing": selectors.failing_of(outcomes),
        "bill": bill_of_task(record),
        "powers": included_roles(request.user, record.project),
    }
