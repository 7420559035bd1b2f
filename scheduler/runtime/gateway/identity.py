"""Who is asking: bearer tokens, looked up elsewhere and remembered for a few seconds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from time import monotonic

from domain.access import Principal, Scope
from scheduler.runtime.gateway.http import HttpError, Request

#: A revoked token is refused after this long at the latest.
REVOCATION_SECONDS = 5.0
#: Tokens remembered, good and bad ones.
REMEMBERED = 10_000

Authenticate = Callable[[str], Awaitable[Principal | None]]


class Identity:
    """Bearer tokens to principals."""

    def __init__(self, authenticate: Authenticate) -> None:
        self._authenticate = authenticate
        self._known: OrderedDict[str, tuple[float, Principal | None]] = OrderedDict()

    async def principal(self, request: Request, scope: Scope) -> Principal:
        """Return who asks. Raises HttpError 401 without a good token, 403 without ``scope``."""
        kind, _, token = request.header(b"authorization").partition(" ")
        if kind.lower() != "bearer" or not token:
            raise _unauthorized("send a token: Authorization: Bearer tgm_…")
        principal = await self._lookup(token.strip())
        if principal is None:
            raise _unauthorized("the token is unknown, revoked or expired")
        if not principal.may(scope):
            raise HttpError(403, "missing_scope", f"this needs a token with scope {scope}")
        return principal

    async def _lookup(self, token: str) -> Principal | None:
        known = self._known.get(token)
        if known is not None and known[0] > monotonic():
            return known[1]
        principal = await self._authenticate(token)
        self._known[token] = (monotonic() + REVOCATION_SECONDS, principal)
        self._known.move_to_end(token)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return principal


def _unauthorized(detail: str) -> HttpError:
    return HttpError(401, "unauthorized", detail, **{"WWW-Authenticate": "Bearer"})
