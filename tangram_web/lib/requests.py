"""The id of each request, shown in errors and logs, and its route for the metrics."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from contract.requests import ROUTE

#: ``<str:name>`` and ``<name>`` in routes of Django.
_GROUP = re.compile(r"\(\?P<(\w+)>[^)]*\)")
_CONVERTER = re.compile(r"<(?:\w+:)?(\w+)>")
#: The User-Agent of the command line.
CLI_AGENT = "tangram-cli"

_ACCEPTED = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def request_id_of(request: HttpRequest) -> str:
    """Return the id that the middleware assigned to ``request``."""
    return getattr(request, "request_id", "")


def comes_from_cli(request: HttpRequest) -> bool:
    """Return whether the User-Agent of ``request`` is that of the command line."""
    return request.headers.get("User-Agent", "").startswith(CLI_AGENT)


class RequestIdMiddleware:
    """Uses the caller's X-Request-ID if it is well formed, else a new one; the response carries it."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        given = request.headers.get("X-Request-ID", "")
        request_id = given if _ACCEPTED.fullmatch(given) else f"req_{secrets.token_hex(12)}"
        request.request_id = request_id  # type: ignore[attr-defined]
        response = self._get_response(request)
        response["X-Request-ID"] = request_id
        _store_route(request)
        return response


def route_template(route: str) -> str:
    """Return a Django route as a URL template: ``/nodes/{name}/drain``."""
    named = _CONVERTER.sub(r"{\1}", _GROUP.sub(r"{\1}", route))
    return "/" + named.replace("^", "").replace("$", "").replace("\\Z", "")


def _store_route(request: HttpRequest) -> None:
    """Store the route in the ASGI scope for the metrics; a test request has no scope."""
    match, scope = request.resolver_match, getattr(request, "scope", None)
    if match is not None and scope is not None:
        scope[ROUTE] = route_template(match.route)
