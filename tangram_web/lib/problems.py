"""Problem details (RFC 9457) for every error below ``/api/``: of responses without a view of the REST framework."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import msgspec
from django.conf import settings
from django.http import HttpRequest, HttpResponse

from contract.responses import ProblemDetails
from tangram_web.lib.requests import request_id_of

CONTENT_TYPE = "application/problem+json"
#: When to try again after an error of the database.
DATABASE_RETRY_SECONDS = 2.0

_CODES = {
    400: "malformed_json",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    406: "not_acceptable",
    409: "conflict",
    410: "gone",
    412: "stale",
    413: "too_large",
    415: "unsupported_media_type",
    422: "invalid",
    429: "too_many_requests",
    500: "internal",
    503: "unavailable",
}


def title_of(status: int) -> str:
    """Return the standard phrase of an HTTP status."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"


def problem(
    request: HttpRequest | None, status: int, detail: str = "", **more: Any
) -> ProblemDetails:
    """Describe an error of ``request``."""
    more.setdefault("code", _CODES.get(status, "error"))
    return ProblemDetails(
        title=title_of(status),
        status=status,
        detail=detail,
        instance=request.path if request is not None else "",
        request_id=request_id_of(request) if request is not None else "",
        **more,
    )


class ProblemMiddleware:
    """Problem details for responses without a view: unknown URLs, broken requests, crashes."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self._get_response(request)
        if response.status_code < 400 or not request.path_info.startswith("/api/"):
            return response
        if response.get("Content-Type", "").startswith(CONTENT_TYPE):
            return response
        if settings.DEBUG and response.status_code >= 500:
            return response
        body = msgspec.json.encode(problem(request, response.status_code))
        return HttpResponse(body, status=response.status_code, content_type=CONTENT_TYPE)
