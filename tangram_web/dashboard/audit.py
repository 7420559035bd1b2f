"""The page of the audit: who did what, what it was before, and through which door."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from tangram_web.audit import selectors
from tangram_web.audit.models import Via
from tangram_web.dashboard.guards import for_watchers


@require_safe
@for_watchers
def entries(request: HttpRequest) -> HttpResponse:
    """Show the audit, newest first, filtered by the address."""
    context = {
        "page": "audit",
        "found": selectors.page(request.GET),
        "verbs": selectors.verbs(),
        "doors": Via.values,
    }
    return render(request, "dashboard/audit.html", context)
