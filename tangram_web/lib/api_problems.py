"""Problem details (RFC 9457) for errors of views of the REST framework.

A web process loads that framework with its pages, behind its first answers; `problems` does without it.
"""

from __future__ import annotations

from typing import Any

import msgspec
from django.db import InterfaceError, OperationalError
from drf_standardized_errors.formatter import ExceptionFormatter
from drf_standardized_errors.handler import ExceptionHandler
from drf_standardized_errors.types import Error, ErrorResponse
from rest_framework import exceptions
from rest_framework.permissions import SAFE_METHODS
from rest_framework.response import Response

from domain.errors import CapacityError, Conflict, Gone, InvalidRequest, NotFound, Unavailable
from tangram_web.lib.access import ApiError
from tangram_web.lib.problems import CONTENT_TYPE, DATABASE_RETRY_SECONDS, problem

#: Codes of refusals that problems keep, as the gateway names them.
_OWN_CODES = frozenset({"missing_scope", "address_not_allowed"})


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
