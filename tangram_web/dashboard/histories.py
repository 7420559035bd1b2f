"""Pages over rows: trajectories and tasks."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from tangram_web.accounts.access import included_roles
from tangram_web.dashboard import selectors
from tangram_web.dashboard.costs import bill_of_task, bill_of_trajectory
from tangram_web.dashboard.critical import critical_path
from tangram_web.dashboard.flame import flame_of
from tangram_web.dashboard.guards import for_viewers, refuse
from tangram_web.dashboard.lanes import lanes_of
from tangram_web.live.access import Sight
from tangram_web.records.models import TrajectoryStatus


@require_safe
@for_viewers
def trajectories(request: HttpRequest, sight: Sight) -> HttpResponse:
    """Show trajectories, the latest opened first."""
    context = {
        "page": "trajectories",
        "found": selectors.trajectory_page(sight, request.GET),
        "states": TrajectoryStatus.values,
    }
    return render(request, "dashboard/trajectories.html", context)


@require_safe
@for_viewers
def trajectory(request: HttpRequest, sight: Sight, key: str) -> HttpResponse:
    """Show one trajectory: its actions over time, and what it waited for."""
    record = selectors.trajectory_record(sight, key)
    if record is None:
        return refuse(request, "No such trajectory", "It may be older than the retention.", 404)
    actions, now = selectors.actions_of_trajectory(record), timezone.now()
    context = {
        "page": "trajectories",
        "trajectory": record,
        "chart": lanes_of(record, actions, now),
        "flame": flame_of(record, actions, now),
        "path": critical_path(record, actions, now),
        "cut": record.actions > len(actions),
        "bill": bill_of_trajectory(record),
    }
    return render(request, "dashboard/trajectory.html", context)


@require_safe
@for_viewers
def tasks(request: HttpRequest, sight: Sight) -> HttpResponse:
    """Show tasks, the latest opened first."""
    context = {"page": "tasks", "found": selectors.task_page(sight, request.GET)}
    return render(request, "dashboard/tasks.html", context)


@require_safe
@for_viewers
def task(request: HttpRequest, sight: Sight, key: str) -> HttpResponse:
    """Show one task: its steps, its outcomes, its share of waiting."""
    record = selectors.task_record(sight, key)
    if record is None:
        return refuse(request, "No such task", "Tasks appear with their first action.", 404)
    context = {
        "page": "tasks",
        "task": record,
        "steps": selectors.steps_of(record),
        "outcomes": selectors.outcomes_of(record),
        "bill": bill_of_task(record),
        "powers": included_roles(request.user, record.project),
    }
    return render(request, "dashboard/task.html", context)
