"""503 where the database does not answer, or is locked for too long: the request may be sent again, and no page failed."""

from __future__ import annotations

import logging
from collections.abc import Callable

from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.template.loader import render_to_string

from tangram_web.lib.problems import DATABASE_RETRY_SECONDS

log = logging.getLogger(__name__)


class DatabaseErrorMiddleware:
    """Answers requests whose view met a database that does not answer. Its page asks nothing of the database."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        return self._get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        """Return the answer to an error of the database; None for other errors."""
        if not isinstance(error, (OperationalError, InterfaceError)):
            return None
        log.error("%s %s: the database does not answer: %s", request.method, request.path, error)
        response = HttpResponse(render_to_string("503.html"), status=503)
        response.headers["Retry-After"] = f"{DATABASE_RETRY_SECONDS:.0f}"
        return response
