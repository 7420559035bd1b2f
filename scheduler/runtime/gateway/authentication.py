"""Authentication by bearer token, with a cache of a few seconds in front of the database."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic
from typing import NamedTuple

from domain.events import RequestOrigin
from domain.principals import Principal, Scope
from scheduler.runtime.gateway.http import HttpError, HttpRequest

log = logging.getLogger(__name__)

#: A revoked token is refused after this long at the latest.
REVOCATION_SECONDS = 5.0
#: A token in use is looked up again at this age, in the background.
REFRESH_SECONDS = REVOCATION_SECONDS / 2
#: Tokens in the cache, valid and invalid ones.
MAX_TOKENS = 10_000

Authenticate = Callable[[str], Awaitable[Principal | None]]


class _CachedToken(NamedTuple):
    asked_at: float
    principal: Principal | None


class TokenCache:
    """Principals by bearer token. Concurrent requests with one token share one look-up."""

    def __init__(self, authenticate: Authenticate) -> None:
        self._authenticate = authenticate
        self._known: OrderedDict[str, _CachedToken] = OrderedDict()
        self._lookups: dict[str, asyncio.Task[Principal | None]] = {}

    async def principal(self, request: HttpRequest, scope: Scope) -> Principal:
        """Return the principal of a request. Raises HttpError 401 without a valid token, 403 without ``scope``."""
        kind, _, token = request.header(b"authorization").partition(" ")
        if kind.lower() != "bearer" or not token:
            raise _unauthorized("send a token: Authorization: Bearer tgm_…")
        principal = await self._principal_of(token.strip())
        if principal is None:
            raise _unauthorized("the token is unknown, revoked or expired")
        if not principal.may(scope):
            raise HttpError(403, "missing_scope", f"this needs a token with scope {scope}")
        return principal

    async def _principal_of(self, token: str) -> Principal | None:
        known = self._known.get(token)
        age = monotonic() - known.asked_at if known is not None else REVOCATION_SECONDS
        lookup = self._lookups.get(token)
        if age >= REFRESH_SECONDS and lookup is None:
            lookup = asyncio.create_task(self._look_up(token))
            self._lookups[token] = lookup
            lookup.add_done_callback(partial(self._looked_up, token))
        if known is not None and age < REVOCATION_SECONDS:
            return known.principal
        assert lookup is not None
        return await asyncio.shield(lookup)

    def _looked_up(self, token: str, lookup: asyncio.Task[Principal | None]) -> None:
        del self._lookups[token]
        if not lookup.cancelled() and (error := lookup.exception()) is not None:
            log.warning("a token cannot be looked up: %s", error)

    async def _look_up(self, token: str) -> Principal | None:
        asked_at = monotonic()
        principal = await self._authenticate(token)
        self._known[token] = _CachedToken(asked_at, principal)
        self._known.move_to_end(token)
        if len(self._known) > MAX_TOKENS:
            self._known.popitem(last=False)
        return principal


def _unauthorized(detail: str) -> HttpError:
    return HttpError(401, "unauthorized", detail, **{"WWW-Authenticate": "Bearer"})


def asked_by(request: HttpRequest, principal: Principal) -> RequestOrigin:
    """Return the author of a request, as the audit names it."""
    via = "cli" if request.header(b"user-agent").startswith("tangram-cli") else "api"
    return RequestOrigin(by=principal.name, request_id=request.id, via=via)
