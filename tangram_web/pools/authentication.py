"""Telling who calls the REST resources. ``request.auth`` is always a `Principal`."""

from __future__ import annotations

from typing import Any

from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from domain.principals import Principal
from tangram_web.audit.services import Actor, actor_at, actor_with_token
from tangram_web.lib.access import principal_of_user
from tangram_web.pools.selectors import principal_of


class TokenCaller:
    """The user of a request that came with a token: not a person with an account."""

    is_authenticated = True
    is_active = True
    is_staff = False

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return f"token {self.name}"


class TokenAuthentication(BaseAuthentication):
    """``Authorization: Bearer tgm_…``."""

    def authenticate(self, request: Request) -> tuple[TokenCaller, Principal] | None:
        """Return the caller; None when there is no bearer token to judge."""
        scheme, _, raw = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        principal = principal_of(raw.strip())
        if principal is None:
            raise AuthenticationFailed("the token is unknown, expired or revoked")
        return TokenCaller(principal.name), principal

    def authenticate_header(self, request: Request) -> str:
        """Say how to authenticate."""
        return "Bearer"


class StaffSessionAuthentication(SessionAuthentication):
    """The browser session of a staff member, guarded against forged requests."""

    def authenticate(self, request: Request) -> tuple[Any, Principal] | None:
        """Return the person; CSRF is checked by the parent."""
        found = super().authenticate(request)
        user = found[0] if found else None
        principal = principal_of_user(user) if user else None
        return None if principal is None else (user, principal)


def actor_of(request: Request) -> Actor:
    """Return the caller as the audit names it."""
    principal: Principal = request.auth  # type: ignore[assignment]
    caller: object = request.user
    if isinstance(caller, TokenCaller):
        return actor_with_token(request._request, principal.name)
    return actor_at(request._request)
