"""Content Security Policy: pages load files of this server only, and nothing inline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from django.http import HttpRequest, HttpResponseBase

POLICY: Final = "; ".join(
    (
        "default-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
#: Views of third parties with inline scripts or styles.
EXEMPT_VIEWS: Final = frozenset({"api-docs"})


class ContentSecurityPolicyMiddleware:
    """Adds the policy to every response without one."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self._get_response(request)
        match = request.resolver_match
        if match is None or match.view_name not in EXEMPT_VIEWS:
            response.headers.setdefault("Content-Security-Policy", POLICY)
        return response
