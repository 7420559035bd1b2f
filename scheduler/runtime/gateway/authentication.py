"""Authentication by bearer token, with a cache of a few seconds in front of the database.

Rules
1. A revoked or expired token is refused after `REVOCATION_SECONDS` at the latest; ``fresh`` asks the
   database, as routes of Django do.
2. A token that is narrowed to networks is refused from other addresses. The address is the one that the
   web server resolved: behind a trusted proxy (``FORWARDED_ALLOW_IPS``) the forwarded one, else the peer's.
3. Answers to a token that expires within `EXPIRY_NOTICE_SECONDS` say so in a header.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import lru_cache, partial
from time import monotonic, time
from typing import NamedTuple

from domain.event_base import RequestOrigin
from domain.principals import Principal, Scope
from scheduler.runtime.gateway.http import HttpError, HttpRequest

log = logging.getLogger(__name__)

#: A revoked token is refused after this long at the latest.
REVOCATION_SECONDS = 5.0
#: A token in use is looked up again at this age, in the background.
REFRESH_SECONDS = REVOCATION_SECONDS / 2
#: Tokens in the cache, valid and invalid ones.
MAX_TOKENS = 10_000

#: Header of answers to a token that expires soon, with the time (RFC 3339).
EXPIRY_HEADER = "Tangram-Token-Expires"
EXPIRY_NOTICE_SECONDS = 14 * 86_400.0

#: Token and address of the client → principal.
Authenticate = Callable[[str, str], Awaitable[Principal | None]]


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
        """Return the principal of a request. Raises HttpError 403 without ``scope``, and as `caller`."""
        return await self.principal_of(bearer_token(request), request, scope)

    def known(self, token: str, scope: Scope) -> Principal | None:
        """Return the principal of a token that was looked up lately and may be used from anywhere.

        None for any other: `principal_of` decides.
        """
        known = self._known.get(token)
        if known is None or monotonic() - known.asked_at >= REFRESH_SECONDS:
            return None
        principal = known.principal
        if principal is None or principal.networks or not principal.may(scope):
            return None
        return None if _is_over(principal) else principal

    async def principal_of(self, token: str, request: HttpRequest, scope: Scope) -> Principal:
        """Return the principal of a ``token`` that a request shows. Raises as `principal`."""
        principal = await self._caller(token, request, fresh=False)
        if not principal.may(scope):
            raise HttpError(403, "missing_scope", f"this needs a token with scope {scope}")
        return principal

    async def caller(self, request: HttpRequest, *, fresh: bool = False) -> Principal:
        """Return the principal of a request, whatever its scopes; ``fresh``: as the database has it now.

        Raises HttpError 401 without a valid token, 403 from an address that the token excludes.
        """
        return await self._caller(bearer_token(request), request, fresh=fresh)

    async def _caller(self, token: str, request: HttpRequest, *, fresh: bool) -> Principal:
        if not token:
            raise _unauthorized("send a token: Authorization: Bearer tgm_…")
        if fresh:
            principal = await self._look_up(token, request.address)
        else:
            known = self._known.get(token)
            if known is not None and monotonic() - known.asked_at < REFRESH_SECONDS:
                principal = known.principal
            else:
                principal = await self._principal_of(token, request.address)
        if principal is None or _is_over(principal):
            raise _unauthorized("the token is unknown, revoked or expired")
        if not principal.admits(request.address):
            where = request.address or "an unknown address"
            raise HttpError(403, "address_not_allowed", f"this token may not be used from {where}")
        return principal

    async def _principal_of(self, token: str, address: str) -> Principal | None:
        known = self._known.get(token)
        age = monotonic() - known.asked_at if known is not None else REVOCATION_SECONDS
        lookup = self._lookups.get(token)
        if age >= REFRESH_SECONDS and lookup is None:
            lookup = asyncio.create_task(self._look_up(token, address))
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

    async def _look_up(self, token: str, address: str) -> Principal | None:
        asked_at = monotonic()
        principal = await self._authenticate(token, address)
        self._known[token] = _CachedToken(asked_at, principal)
        self._known.move_to_end(token)
        if len(self._known) > MAX_TOKENS:
            self._known.popitem(last=False)
        return principal


def bearer_token(request: HttpRequest) -> str:
    """Return the bearer token that a request shows, or the empty string."""
    return _bearer_token(request.headers.get(b"authorization", b""))


@lru_cache(256)
def _bearer_token(credentials: bytes) -> str:
    kind, _, token = credentials.decode("latin-1").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def expiry_headers(principal: Principal) -> dict[str, str]:
    """Return the header that announces the end of the caller's token, if it is near."""
    end = principal.expires_at
    if end is None or end - time() > EXPIRY_NOTICE_SECONDS:
        return {}
    at = datetime.fromtimestamp(end, UTC).isoformat(timespec="seconds")
    return {EXPIRY_HEADER: at.replace("+00:00", "Z")}


def _is_over(principal: Principal) -> bool:
    """Return whether the token has expired since it was looked up."""
    return principal.expires_at is not None and principal.expires_at <= time()


def _unauthorized(detail: str) -> HttpError:
    return HttpError(401, "unauthorized", detail, **{"WWW-Authenticate": "Bearer"})


def asked_by(request: HttpRequest, principal: Principal) -> RequestOrigin:
    """Return the author of a request, as the audit names it."""
    via = "cli" if request.header(b"user-agent").startswith("tangram-cli") else "api"
    return RequestOrigin(by=principal.name, request_id=request.id, via=via)
