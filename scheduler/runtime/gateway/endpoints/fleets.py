"""Endpoints of fleets: their status, a dry run of an arrangement, drain of a worker and its end, and pins of trajectories.

Workers are shared by all projects, so tokens of one project drain none (403); they see and pin trajectories of their project alone, and
see no addresses. A pin of a trajectory that has sent no generation to the fleet changes nothing. Status and plan are one query of the
scheduler loop each.
"""

from __future__ import annotations

import msgspec
import redis

from contract.fleet_reports import KeeperReport
from contract.fleet_routes import MAX_TRAJECTORIES, ChangedFleet, PinRequest, PlanRequest
from contract.fleet_status import FleetStatus
from contract.fleet_views import FleetDetails, FleetPlanView
from domain.codec import encode
from domain.errors import Gone, NotFound
from domain.fleet_events import FleetWorkersChanged, TrajectoryPinned
from domain.fleets import WorkerFact
from domain.ids import trajectory_key
from domain.principals import Principal
from scheduler.runtime.capacity import FleetCapacity
from scheduler.runtime.gateway.authentication import asked_by
from scheduler.runtime.gateway.context import GatewayContext
from scheduler.runtime.gateway.http import HttpError, HttpRequest, HttpResponse
from scheduler.runtime.gateway.request_parsing import decode, number

_report = msgspec.json.Decoder(KeeperReport)
_pin = msgspec.json.Decoder(PinRequest)
_plan = msgspec.json.Decoder(PlanRequest)


class Fleets:
    """Handlers of ``/fleets/{fleet}/…``."""

    def __init__(self, context: GatewayContext) -> None:
        self._context = context

    async def status(self, request: HttpRequest, principal: Principal, fleet: str) -> HttpResponse:
        """GET /fleets/{fleet}/status?limit=: the fleet as it is now."""
        limit = int(number(request.query().get("limit", "20"), "limit", MAX_TRAJECTORIES))
        found = await self._asked(principal, fleet, limit=limit)
        everything = principal.project is None
        view = FleetDetails.of(found, await self._report(fleet), addresses=everything)
        return HttpResponse(200, view)

    async def plan(self, request: HttpRequest, principal: Principal, fleet: str) -> HttpResponse:
        """POST /fleets/{fleet}/plan: what an arrangement of now would change. Changes nothing."""
        payload = decode(_plan, await request.body() or b"{}")
        found = await self._asked(principal, fleet, plan=True, plan_limit=payload.limit)
        assert found.plan is not None
        return HttpResponse(200, FleetPlanView.of(found, found.plan))

    async def drain(
        self, request: HttpRequest, principal: Principal, fleet: str, worker: str
    ) -> HttpResponse:
        """POST /fleets/{fleet}/workers/{worker}/drain."""
        return await self._set_drained(request, principal, fleet, worker, drained=True)

    async def undrain(
        self, request: HttpRequest, principal: Principal, fleet: str, worker: str
    ) -> HttpResponse:
        """POST /fleets/{fleet}/workers/{worker}/undrain."""
        return await self._set_drained(request, principal, fleet, worker, drained=False)

    async def pin(self, request: HttpRequest, principal: Principal, fleet: str) -> HttpResponse:
        """POST /fleets/{fleet}/pin."""
        payload = decode(_pin, await request.body())
        await self._check(fleet, payload.worker)
        project = await self._context.project(request, principal)
        found = await self._context.queries.trajectory(project, payload.trajectory)
        if found.state != "open":
            raise Gone(f"trajectory {payload.trajectory!r} is {found.state}")
        event = TrajectoryPinned(
            fleet=fleet,
            trajectory=trajectory_key(project, payload.trajectory),
            worker=payload.worker,
            asked=asked_by(request, principal),
        )
        await self._context.submitter.append([encode(event)])
        return HttpResponse(202, ChangedFleet(fleet, payload.worker, payload.trajectory))

    async def _set_drained(
        self, request: HttpRequest, principal: Principal, fleet: str, worker: str, *, drained: bool
    ) -> HttpResponse:
        await request.body()
        if principal.project is not None:
            raise HttpError(
                403,
                "all_projects",
                "workers of fleets are shared by all projects: use a token that is not bound to a project",
            )
        await self._check(fleet, worker)
        event = FleetWorkersChanged(
            fleet=fleet,
            facts=(WorkerFact(worker, drained=drained),),
            asked=asked_by(request, principal),
        )
        await self._context.submitter.append([encode(event)])
        return HttpResponse(202, ChangedFleet(fleet, worker))

    async def _asked(
        self,
        principal: Principal,
        fleet: str,
        *,
        limit: int = 0,
        plan: bool = False,
        plan_limit: int = 0,
    ) -> FleetStatus:
        """Ask the scheduler for a fleet. Raises NotFound, Unavailable."""
        await self._check(fleet, "")
        projects = None if principal.project is None else (principal.project,)
        found = await self._context.queries.fleets(
            fleet, limit=limit, projects=projects, plan=plan, plan_limit=plan_limit
        )
        if not found.fleets:
            raise NotFound(f"fleet {fleet!r} was deleted")
        return found.fleets[0]

    async def _report(self, fleet: str) -> KeeperReport | None:
        """Return what the keeper of fleets found last; None: nothing, or Redis does not answer."""
        context = self._context
        try:
            stored = await context.client.hget(context.keys.fleet_reports, fleet)
            return None if stored is None else _report.decode(stored)
        except (redis.RedisError, msgspec.DecodeError):  # a keeper of another version wrote it
            return None

    async def _check(self, fleet: str, worker: str) -> None:
        """Raise NotFound for a fleet or a worker that is not there; an empty ``worker`` is none."""

        def known() -> None:
            fleets = self._context.admission.view.fleets
            found = fleets.get(fleet)
            if found is None:
                there = ", ".join(sorted(fleets)) or "none"
                raise NotFound(f"there is no fleet {fleet[:128]!r}; there are: {there}")
            if worker and worker not in _names(found):
                there = ", ".join(_names(found)) or "none"
                raise NotFound(
                    f"fleet {fleet!r} has no worker {worker[:128]!r}; there are: {there}"
                )

        await self._context.admitted(known)


def _names(fleet: FleetCapacity) -> list[str]:
    return [each.name for each in fleet.workers]
