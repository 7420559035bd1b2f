"""Endpoints of backends of language models: their pools, changes of them, and the weights version that a change begins.

Pools belong to all projects. Tokens of one project list them without addresses, and change none (403). The pools of a project's
own (``NAME@PROJECT``) are listed for that project alone, and its operators change them, with the addresses that
`domain.backend_addresses.check_own_address` permits.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import asdict

from contract.rollout_requests import BackendRequest, BalanceRequest
from contract.rollout_status import BackendStatus, without_address
from contract.rollout_views import BackendPools, BackendPoolView, ChangedBackends
from domain.backend_addresses import base_address, check_own_address, name_of
from domain.backends import (
    MAX_POOLS,
    MAX_POOLS_OF_PROJECT,
    LlmBackend,
    check_backend,
    check_pool_name,
    llm_resource,
    own_pool,
    owner_of,
)
from domain.codec import encode
from domain.errors import Conflict, NotFound
from domain.principals import Principal
from domain.rollout_events import BackendsChanged
from scheduler.runtime.gateway.authentication import asked_by
from scheduler.runtime.gateway.context import GatewayContext
from scheduler.runtime.gateway.http import HttpError, HttpRequest, HttpResponse
from scheduler.runtime.gateway.request_parsing import checked_name, decode

_backend = msgspec.json.Decoder(BackendRequest)
_balance = msgspec.json.Decoder(BalanceRequest)


class Backends:
    """Handlers of ``/backends``."""

    def __init__(self, context: GatewayContext) -> None:
        self._context = context

    async def listed(self, request: HttpRequest, principal: Principal) -> HttpResponse:
        """GET /backends."""
        found = await self._context.queries.rollouts(backends=("*",), limit=0)
        backends = [visible(each, principal) for each in found.backends]
        pools = [
            BackendPoolView(name, version, [each for each in backends if each.pool == name])
            for name, version in sorted(found.pools.items())
            if principal.sees(owner_of(name) or principal.project or "")
        ]
        return HttpResponse(200, BackendPools(pools))

    async def put(self, request: HttpRequest, principal: Principal) -> HttpResponse:
        """POST /backends: add a backend, or change the one of its name."""
        payload = decode(_backend, await request.body())
        _check_change(principal, payload.pool)
        address = base_address(payload.address)
        if principal.project is not None:
            check_own_address(address)
        backend = LlmBackend(
            name=payload.name or name_of(address),
            address=address,
            seats=payload.seats,
            dialect=payload.dialect,
            model=payload.model,
            weights_version=payload.weights_version,
        )
        check_backend(backend)
        check_pool_name(payload.pool, "/pool")
        await self._check_limit(payload.pool)
        asked = asked_by(request, principal)
        event = BackendsChanged(pool=payload.pool, put=(backend,), asked=asked)
        return await self._accepted(event, backend.name)

    async def clear(self, request: HttpRequest, principal: Principal, pool: str) -> HttpResponse:
        """POST /backends/{pool}/clear."""
        await _body(request, principal, pool)
        await self._known(pool)
        asked = asked_by(request, principal)
        return await self._accepted(BackendsChanged(pool=pool, clear=True, asked=asked))

    async def balance(self, request: HttpRequest, principal: Principal, pool: str) -> HttpResponse:
        """POST /backends/{pool}/balance."""
        payload = decode(_balance, await _body(request, principal, pool))
        await self._known(pool)
        asked = asked_by(request, principal)
        event = BackendsChanged(pool=pool, balance=payload.balance, asked=asked)
        return await self._accepted(event)

    async def forget(self, request: HttpRequest, principal: Principal, pool: str) -> HttpResponse:
        """DELETE /backends/{pool}: an empty pool. Raises Conflict while it is used."""
        await _body(request, principal, pool)
        if await self._known(pool):
            raise Conflict(f"pool {pool!r} has backends: remove them first (POST …/clear)")
        asked = asked_by(request, principal)
        answer = await self._accepted(BackendsChanged(pool=pool, forget=True, asked=asked))
        # A query passes the same inbox: its answer says what the core decided.
        if pool in (await self._context.queries.rollouts(backends=(pool,), limit=0)).pools:
            raise Conflict(
                f"pool {pool!r} stays: a rollout that is not finished names it, a lease has a seat of it, or a Resource"
                f" document declares {llm_resource(pool)}"
            )
        return answer

    async def remove(
        self, request: HttpRequest, principal: Principal, pool: str, name: str
    ) -> HttpResponse:
        """DELETE /backends/{pool}/{backend}."""
        await _body(request, principal, pool)
        backend = await self._named(pool, name)
        asked = asked_by(request, principal)
        event = BackendsChanged(pool=pool, removed=(backend.name,), asked=asked)
        return await self._accepted(event, backend.name)

    async def drain(
        self, request: HttpRequest, principal: Principal, pool: str, name: str
    ) -> HttpResponse:
        """POST /backends/{pool}/{backend}/drain."""
        return await self._set_drained(request, principal, pool, name, drained=True)

    async def resume(
        self, request: HttpRequest, principal: Principal, pool: str, name: str
    ) -> HttpResponse:
        """POST /backends/{pool}/{backend}/resume."""
        return await self._set_drained(request, principal, pool, name, drained=False)

    async def _set_drained(
        self, request: HttpRequest, principal: Principal, pool: str, name: str, *, drained: bool
    ) -> HttpResponse:
        await _body(request, principal, pool)
        found = asdict(await self._named(pool, name))
        kept = {member: found[member] for member in _DECLARED}
        backend = LlmBackend(**kept, drained=drained)
        asked = asked_by(request, principal)
        event = BackendsChanged(pool=pool, put=(backend,), asked=asked)
        return await self._accepted(event, backend.name)

    async def _check_limit(self, pool: str) -> None:
        """Raise Conflict for one pool too many, which the core would ignore."""
        known = (await self._context.queries.rollouts(backends=("*",), limit=0)).pools
        owner = owner_of(pool)
        own = sum(owner_of(name) == owner for name in known) if owner else 0
        if pool not in known and (len(known) >= MAX_POOLS or own >= MAX_POOLS_OF_PROJECT):
            raise Conflict(
                f"{own or len(known)} pools of backends are known, and no more are: add it to one of them",
                pointer="/pool",
            )

    async def _known(self, pool: str) -> list[BackendStatus]:
        """Return the backends of a pool. Raises NotFound."""
        checked_name(pool, "pool of backends")
        found = await self._context.queries.rollouts(backends=(pool,), limit=0)
        if pool not in found.pools:
            raise NotFound(f"there is no pool of backends {pool!r} ({llm_resource(pool)})")
        return found.backends

    async def _named(self, pool: str, name: str) -> BackendStatus:
        backends = await self._known(pool)
        for backend in backends:
            if backend.name == name:
                return backend
        known = ", ".join(each.name for each in backends) or "none"
        raise NotFound(f"pool {pool!r} has no backend {name[:128]!r}; there are: {known}")

    async def _accepted(self, event: BackendsChanged, backend: str = "") -> HttpResponse:
        await self._context.submitter.append([encode(event)])
        return HttpResponse(202, ChangedBackends(event.pool, backend))


#: What a backend declares; the rest is the core's.
_DECLARED = ("name", "address", "seats", "dialect", "model", "weights_version")


async def _body(request: HttpRequest, principal: Principal, pool: str) -> bytes:
    """Return the body of a change. Raises HttpError 403 as `_check_change`."""
    body = await request.body()
    _check_change(principal, pool)
    return body


def _check_change(principal: Principal, pool: str) -> None:
    """Raise HttpError 403 for a token of one project, unless the pool is that project's own."""
    if principal.project is not None and owner_of(pool) != principal.project:
        raise HttpError(
            403,
            "all_projects",
            "these backends are shared by all projects: use a token that is not bound to a project, or a"
            f" pool of your own, as {own_pool(principal.project, 'NAME')!r}",
        )


def visible(backend: BackendStatus, principal: Principal) -> BackendStatus:
    """Return what ``principal`` may know: a token of one project no address, nor a name that is made of it.

    Of a pool of its own it may know both.
    """
    return backend if knows_addresses(principal, backend.pool) else without_address(backend)


def knows_addresses(principal: Principal, pool: str) -> bool:
    """Return whether ``principal`` may know the addresses of a pool, and names that are made of them."""
    return principal.project is None or owner_of(pool) == principal.project
