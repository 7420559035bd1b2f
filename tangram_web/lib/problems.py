"""Problem details (RFC 9457) for every error below ``/api/``."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import msgspec
from django.conf import settings
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse
from drf_standardized_errors.formatter import ExceptionFormatter
from drf_standardized_errors.handler import ExceptionHandler
from drf_standardized_errors.types import Error, ErrorResponse
from rest_framework import exceptions
from rest_framework.permissions import SAFE_METHODS
from rest_framework.response import Response

from contract.responses import ProblemDetails
from domain.errors import CapacityError, Conflict, Gone, InvalidRequest, NotFound, Unavailable
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


#: Codes of refusals that problems keep, as the gateway names them.
_OWN_CODES = frozenset({"missing_scope", "address_not_allowed"})


class ApiError(exceptions.APIException):
    """A domain error with its HTTP status."""

    def __init__(self, status: int, detail: str, code: str, pointer: str = "") -> None:
        super().__init__(detail, code)
        self.status_code = status
        self.pointer = pointer


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


class ProblemHandler(ExceptionHandler):
    """Turns exceptions of a view into responses; domain errors keep their JSON Pointer."""

    def convert_known_exceptions(self, exc: Exception) -> Exception:
        """Give domain errors their HTTP status; an invalid value is 422, not 400."""
        converted = super().convert_known_exceptions(exc)
        match converted:
            case NotFound():
                return ApiError(404, str(exc), "not_found")
            case Gone():
                return ApiError(410, str(exc), "gone", converted.pointer)
            case Conflict():
                return ApiError(409, str(exc), converted.code, converted.pointer)
            case InvalidRequest():
                return ApiError(422, str(exc), converted.code, converted.pointer)
            case CapacityError():
                status = 503 if isinstance(converted, Unavailable) else 429
                refusal = ApiError(status, str(exc), "unavailable")
                refusal.wait = converted.retry_after_seconds  # type: ignore[attr-defined]
                return refusal
            case OperationalError() | InterfaceError():
                refusal = ApiError(
                    503, "the database does not answer; send it again", "unavailable"
                )
                refusal.wait = DATABASE_RETRY_SECONDS  # type: ignore[attr-defined]
                return refusal
            case exceptions.ValidationError():
                converted.status_code = 422
        return converted

    def get_response(self, exc: exceptions.APIException, data: dict[str, Any]) -> Response:
        headers = self.get_headers(exc)
        return Response(data, status=exc.status_code, headers=headers, content_type=CONTENT_TYPE)


class ProblemFormatter(ExceptionFormatter):
    """Renders the flattened errors of DRF as a `ProblemDetails` with JSON Pointers."""

    def format_error_response(self, error_response: ErrorResponse) -> dict[str, Any]:
        """Return the members of the problem."""
        request = self.context["request"]
        errors = error_response.errors
        in_query = request is not None and request.method in SAFE_METHODS
        more: dict[str, Any] = {"errors": _pointed(self.exc, errors, in_query=in_query)}
        if errors and (isinstance(self.exc, ApiError) or errors[0].code in _OWN_CODES):
            more["code"] = errors[0].code
        found = problem(
            request._request if request is not None else None,
            self.exc.status_code,
            _sentence(errors),
            **more,
        )
        described: dict[str, Any] = msgspec.to_builtins(found)
        return described


def _pointed(
    exc: exceptions.APIException, errors: list[Error], *, in_query: bool
) -> list[dict[str, str]]:
    """Return the errors that concern one member: ``/name`` of the body, ``?name`` of the query."""
    pointer = exc.pointer if isinstance(exc, ApiError) else ""
    if pointer:
        return [{"pointer": pointer, "detail": error.detail} for error in errors]
    mark = "?" if in_query else "/"
    return [
        {"pointer": "" if _of_all(error) else f"{mark}{error.attr}", "detail": error.detail}
        for error in errors
        if error.attr is not None
    ]


def _of_all(error: Error) -> bool:
    return error.attr in {None, "non_field_errors"}


def _sentence(errors: list[Error]) -> str:
    if not errors:
        return ""
    first = errors[0]
    return first.detail if _of_all(first) else f"{first.attr}: {first.detail}"


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
