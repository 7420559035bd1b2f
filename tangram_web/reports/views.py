"""The report of a task as a page to read and to print."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse

from domain.errors import NotFound
from tangram_web.dashboard.guards import refuse
from tangram_web.live.access import Sight
from tangram_web.reports.task_report import report_of


def task_report(request: HttpRequest, sight: Sight, task_key: str) -> dict[str, Any] | HttpResponse:
    """Show the report of a task; ``?with=`` names another one, ``PROJECT/NAME`` or a name in the same project."""
    other = request.GET.get("with", "").strip()
    if other and "/" not in other:
        other = f"{task_key.partition('/')[0]}/{other}"
    try:
        return {"report": report_of(sight, task_key, other), "key": task_key, "other": other}
    except NotFound as error:
        return refuse(request, "No such task", f"{str(error).capitalize()}.", 404)
