"""Endpoints that change rollouts: cancel, park and resume, of one rollout or of many in one request.

Rules
1. A repetition, or the change of a finished rollout, changes nothing. A cancel of an unknown rollout is remembered
   (`domain.rollouts`).
2. The changes of one request are appended together, so the core decides on them in one pass: the slot of a rollout
   that is parked goes to none that the same request parks.
3. Of many rollouts each is changed or refused on its own; the request has one result for each id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from contract.responses import ProblemDetails
from contract.rollout_requests import RolloutChangeRequest, RolloutsChangeRequest
from contract.rollout_views import ChangedRollout, ChangedRollouts, RolloutChangeItem
from domain.codec import encode
from domain.errors import NotFound
from domain.event_base import RequestOrigin
from domain.events import Event
from domain.principals import Principal
from domain.rollout_events import (
    RolloutCancelRequested,
    RolloutParkRequested,
    RolloutResumeRequested,
)
from domain.rollouts import RolloutId
from scheduler.runtime.gateway.authentication import asked_by
from scheduler.runtime.gateway.context import GatewayContext
from scheduler.runtime.gateway.http import HttpRequest, HttpResponse, problem_of
from scheduler.runtime.gateway.request_parsing import decode
from scheduler.runtime.gateway.rollout_lookup import RolloutLookup, checked_rollout
from scheduler.runtime.rollouts.log_store import is_rollout_id

Verb = Literal["cancel", "park", "resume"]

_change = msgspec.json.Decoder(RolloutChangeRequest)
_changes = msgspec.json.Decoder(RolloutsChangeRequest)
_problem = msgspec.json.Decoder(ProblemDetails)
_CANCELLED: Final = "cancelled by request"
_PARKED: Final = "parked by request"


class RolloutChanges:
    """Handlers of ``/rollouts/{id}/VERB`` and of ``/rollouts/VERB``."""

    def __init__(self, context: GatewayContext) -> None:
        self._context = context
        self._lookup = RolloutLookup(context)

    async def cancel(
        self, request: HttpRequest, principal: Principal, rollout: str
    ) -> HttpResponse:
        """POST /rollouts/{id}/cancel."""
        return await self._one(request, principal, rollout, "cancel")

    async def park(self, request: HttpRequest, principal: Principal, rollout: str) -> HttpResponse:
        """POST /rollouts/{id}/park."""
        return await self._one(request, principal, rollout, "park")

    async def resume(
        self, request: HttpRequest, principal: Principal, rollout: str
    ) -> HttpResponse:
        """POST /rollouts/{id}/resume."""
        return await self._one(request, principal, rollout, "resume")

    async def cancel_many(self, request: HttpRequest, principal: Principal) -> HttpResponse:
        """POST /rollouts/cancel."""
        return await self._many(request, principal, "cancel")

    async def park_many(self, request: HttpRequest, principal: Principal) -> HttpResponse:
        """POST /rollouts/park."""
        return await self._many(request, principal, "park")

    async def resume_many(self, request: HttpRequest, principal: Principal) -> HttpResponse:
        """POST /rollouts/resume."""
        return await self._many(request, principal, "resume")

    async def _one(
        self, request: HttpRequest, principal: Principal, rollout: str, verb: Verb
    ) -> HttpResponse:
        """Answer a request that changes a rollout; a finished one is shown as it is."""
        body = await request.body()
        reason = decode(_change, body).reason if body.strip() else ""
        item = self._item(request, principal, checked_rollout(rollout))
        if item.problem is not None:
            raise NotFound(item.problem.detail)
        if item.outcome is not None:
            return HttpResponse(200, await self._lookup.find(request, principal, rollout))
        await self._append(request, principal, verb, [rollout], reason)
        return HttpResponse(202, ChangedRollout(rollout, verb))

    async def _many(self, request: HttpRequest, principal: Principal, verb: Verb) -> HttpResponse:
        payload = decode(_changes, await request.body())
        items = {each: self._item(request, principal, each) for each in payload.ids}
        asked = [each.id for each in items.values() if each.status == 202]
        if asked:
            await self._append(request, principal, verb, asked, payload.reason)
        return HttpResponse(202, ChangedRollouts(verb, [items[each] for each in payload.ids]))

    def _item(self, request: HttpRequest, principal: Principal, rollout: str) -> RolloutChangeItem:
        """Return the result for a rollout: 202 for all that may live."""
        end = self._context.rollout_ends.recent(rollout)
        if not is_rollout_id(rollout) or not (end is None or principal.sees(end.finish.project)):
            missing = problem_of(NotFound(f"there is no rollout {rollout[:64]!r}"), request)
            return RolloutChangeItem(rollout, 404, problem=_problem.decode(missing.content))
        if end is not None:
            return RolloutChangeItem(rollout, 200, end.finish.result.outcome)
        return RolloutChangeItem(rollout, 202)

    async def _append(
        self,
        request: HttpRequest,
        principal: Principal,
        verb: Verb,
        rollouts: Sequence[str],
        reason: str,
    ) -> None:
        projects: dict[str, str] = {}
        if principal.project is None and not request.query().get("project"):
            live = await self._context.queries.rollouts(
                rollout_ids=tuple(rollouts), limit=len(rollouts)
            )
            projects = {each.id: each.project for each in live.rollouts}
        if any(each not in projects for each in rollouts):
            default = await self._context.project(request, principal)
            projects = {each: projects.get(each, default) for each in rollouts}
        asked = asked_by(request, principal)
        events = [_event(verb, projects[each], each, reason, asked) for each in rollouts]
        await self._context.submitter.append([encode(event) for event in events])


def _event(verb: Verb, project: str, rollout: str, reason: str, asked: RequestOrigin) -> Event:
    name = RolloutId(rollout)
    if verb == "cancel":
        return RolloutCancelRequested(
            rollout_id=name, project=project, reason=reason or _CANCELLED, asked=asked
        )
    if verb == "park":
        return RolloutParkRequested(
            rollout_id=name, project=project, reason=reason or _PARKED, asked=asked
        )
    return RolloutResumeRequested(rollout_id=name, project=project, asked=asked)
