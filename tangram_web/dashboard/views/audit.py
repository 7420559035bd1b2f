"""Audit: each change with its author, its values before and after, and the way it came in."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from tangram_web.audit import selectors
from tangram_web.audit.models import Via


def audit(request: HttpRequest) -> dict[str, Any]:
    """Show one page of entries, newest first, filtered by the address."""
    return {
        "found": selectors.page(request.GET),
        "verbs": selectors.verbs(),
        "doors": Via.values,
    }
