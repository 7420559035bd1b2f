"""Context of every template: the page that is shown, the navigation, and what the reader may see."""

from __future__ import annotations

from functools import cache
from typing import Any

from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject

from tangram_web import site_map
from tangram_web.dashboard.pages import navigation_of
from tangram_web.live.access import Sight, sight_of


def console(request: HttpRequest) -> dict[str, Any]:
    """Return ``page``, ``navigation`` and ``sight``; the last two are evaluated on first use."""

    @cache
    def seen() -> Sight | None:
        return sight_of(getattr(request, "user", None))

    match = getattr(request, "resolver_match", None)
    name = "" if match is None else match.view_name
    return {
        "page": next((page for page in site_map.PAGES if page.name == name), None),
        "navigation": SimpleLazyObject(lambda: navigation_of(site_map.PAGES, name, seen())),
        "sight": SimpleLazyObject(seen),
    }
