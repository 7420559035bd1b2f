"""What somebody is told who failed to sign in too often."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from tangram_web.dashboard.guards import refuse


def locked_out(request: HttpRequest, *_: Any) -> HttpResponse:
    """Answer 429 with the time after which another try makes sense."""
    seconds = round(settings.AXES_COOLOFF_TIME.total_seconds())
    cure = f"There were too many failures for this name or address. Try again in {seconds // 60} minutes."
    answer = refuse(request, "Too many tries", cure, 429)
    answer.headers["Retry-After"] = str(seconds)
    return answer
