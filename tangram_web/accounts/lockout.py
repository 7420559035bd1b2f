"""The response to a sign-in while the account or the address is locked."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from tangram_web.dashboard.guards import refuse


def locked_out(request: HttpRequest, *_: Any) -> HttpResponse:
    """Answer 429 with the time after which sign-in is possible again."""
    seconds = round(settings.AXES_COOLOFF_TIME.total_seconds())
    cure = f"Sign-in failed too often for this account or address. Try again in {seconds // 60} minutes."
    answer = refuse(request, "Too many attempts", cure, 429)
    answer.headers["Retry-After"] = str(seconds)
    return answer
