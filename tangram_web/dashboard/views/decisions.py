"""Decisions: recent decisions of the policies, and the alternatives that they compared."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from tangram_web.dashboard.recent_decisions import recent_decision_page
from tangram_web.dashboard.scheduler_selectors import asked


def decisions(request: HttpRequest) -> dict[str, Any]:
    """Show one page of the decisions that the scheduler keeps."""
    found, problem = asked(lambda: recent_decision_page(request.GET))
    return {"found": found, "problem": problem}
