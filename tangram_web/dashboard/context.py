"""What every page knows: what its reader may see, so that links lead only to what opens."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject

from tangram_web.live.access import sight_of


def sight(request: HttpRequest) -> dict[str, Any]:
    """Give templates ``sight``, worked out when one asks for it."""
    return {"sight": SimpleLazyObject(lambda: sight_of(getattr(request, "user", None)))}
