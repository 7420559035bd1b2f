"""Endpoints of leases: a trainer holds units as long as it renews in time."""

from __future__ import annotations

import asyncio

import msgspec

from contract.receipts import RenewedLease
from contract.requests import LeaseReleaseRequest, LeaseRenewRequest
from contract.responses import ActionResponse, rfc3339
from domain.action import ActionState, Kind
from domain.apis import Feedback, verdict_of
from domain.codec import encode
from domain.errors import Conflict, Unavailable
from domain.events import LeaseReleased, LeaseRenewed
from domain.ids import ActionId
from domain.principals import Principal
from scheduler.runtime.gateway.context import GatewayContext
from scheduler.runtime.gateway.http import HttpRequest, HttpResponse
from scheduler.runtime.gateway.request_parsing import decode

ANSWER_SECONDS = 5.0
_release = msgspec.json.Decoder(LeaseReleaseRequest)
_renew = msgspec.json.Decoder(LeaseRenewRequest)


class Leases:
    """Handlers of ``/leases``."""

    def __init__(self, context: GatewayContext) -> None:
        self._context = context

    async def renew(
        self, request: HttpRequest, principal: Principal, action_id: str
    ) -> HttpResponse:
        """POST /leases/{id}/renew: the new end of the lease; 409 when it is not held."""
        body = await request.body()
        payload = decode(_renew, body) if body.strip() else LeaseRenewRequest()
        view = await self._lease(request, principal, action_id)
        if view.state is not ActionState.RUNNING:
            raise Conflict(f"the lease is {view.outcome or view.state}; it cannot be renewed")
        renewal = self._context.tail.renewal_of(action_id)
        event = LeaseRenewed(
            action_id=ActionId(action_id), project=view.project, ttl_seconds=payload.ttl_seconds
        )
        try:
            await self._context.submitter.append([encode(event)])
            async with asyncio.timeout(ANSWER_SECONDS):
                ends = await renewal
        except TimeoutError:
            raise Unavailable("the renewal was not confirmed; retrieve the lease") from None
        finally:
            self._context.tail.forget(action_id, renewal)
        return HttpResponse(200, RenewedLease(action_id, rfc3339(ends)))

    async def release(
        self, request: HttpRequest, principal: Principal, action_id: str
    ) -> HttpResponse:
        """POST /leases/{id}/release. A repetition changes nothing."""
        body = await request.body()
        payload = decode(_release, body) if body.strip() else LeaseReleaseRequest()
        view = await self._lease(request, principal, action_id)
        if view.state is ActionState.FINISHED:
            return HttpResponse(200, view)
        future = self._context.tail.finish_of(action_id)
        event = LeaseReleased(
            action_id=ActionId(action_id), project=view.project, feedback=_feedback(payload)
        )
        try:
            await self._context.submitter.append([encode(event)])
            finished = await self._context.wait_for(request, future, ANSWER_SECONDS)
        finally:
            self._context.tail.discard(action_id, future)
        return HttpResponse(202, view) if finished is None else HttpResponse(200, finished)

    async def _lease(
        self, request: HttpRequest, principal: Principal, action_id: str
    ) -> ActionResponse:
        view = await self._context.find(request, principal, action_id)
        if view.kind is not Kind.LEASE:
            raise Conflict(f"{action_id} is of kind {view.kind}, not a lease")
        return view


def _feedback(payload: LeaseReleaseRequest) -> Feedback | None:
    if payload.status is None:
        return None
    pause = payload.retry_after_seconds
    verdict = verdict_of(payload.status, pause)
    return Feedback(payload.resource or "", verdict, pause_seconds=pause)
