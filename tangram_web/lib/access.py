"""Permissions over REST: scopes of tokens and of signed-in staff; and refusals of views."""

from __future__ import annotations

from typing import Any

from rest_framework.exceptions import APIException, MethodNotAllowed
from rest_framework.permissions import SAFE_METHODS, BasePermission

from domain.principals import Principal, Scope


class HasScope(BasePermission):
    """The caller's token holds the scope that the view names.

    A view sets ``read_scope`` and ``write_scope``; without one of them it has no such methods.
    """

    code = "missing_scope"

    def has_permission(self, request: Any, view: Any) -> bool:
        """Return whether the caller has the scope that this method needs."""
        principal: Principal | None = request.auth
        if principal is None:
            return False
        needed = needed_scope(request.method, view)
        if needed is None:
            raise MethodNotAllowed(request.method)
        self.message = f"this needs the scope {needed}"
        return principal.may(needed)


def needed_scope(method: str, view: Any) -> Scope | None:
    """Return the scope that ``method`` of ``view`` needs."""
    name = "read_scope" if method in SAFE_METHODS else "write_scope"
    scope: Scope | None = getattr(view, name, None)
    return scope


class SessionScopes:
    """Scopes of browser sessions: staff read and operate, superusers administer."""

    STAFF = frozenset({Scope.READ, Scope.OPERATE})
    SUPERUSER = frozenset({Scope.ADMIN})


def principal_of_user(user: Any) -> Principal | None:
    """Return the principal of a signed-in staff account, over all projects; None for other accounts."""
    if not (user.is_active and user.is_staff):
        return None
    scopes = SessionScopes.SUPERUSER if user.is_superuser else SessionScopes.STAFF
    return Principal(name=user.get_username(), project=None, scopes=scopes)


class ApiError(APIException):
    """A domain error with its HTTP status."""

    def __init__(self, status: int, detail: str, code: str, pointer: str = "") -> None:
        super().__init__(detail, code)
        self.status_code = status
        self.pointer = pointer
