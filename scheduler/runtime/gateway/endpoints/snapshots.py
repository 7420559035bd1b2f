"""Endpoints of whole environments: snapshots and parking."""

from __future__ import annotations

import logging

import msgspec
import redis

from contract.receipts import ParkedEnvironment, RemovedSnapshot, SnapshotDetails, SnapshotList
from contract.requests import SnapshotRequest
from contract.responses import rfc3339
from domain.errors import Conflict, NotFound, TangramError
from domain.parking import ParkReport
from domain.principals import Principal
from domain.snapshots import SnapshotFacts
from scheduler.runtime.gateway.context import GatewayContext
from scheduler.runtime.gateway.http import HttpRequest, HttpResponse
from scheduler.runtime.gateway.request_parsing import checked_name, decode
from scheduler.runtime.redis.confirmation import unavailable
from scheduler.runtime.redis.snapshot_registry import SnapshotRegistry

log = logging.getLogger(__name__)

_parked = msgspec.json.Decoder(ParkReport)
_snapshot = msgspec.json.Decoder(SnapshotRequest)


class Snapshots:
    """Handlers that take, list and remove snapshots, and park environments."""

    def __init__(self, context: GatewayContext) -> None:
        self._context = context
        self._registry = SnapshotRegistry(context.client, context.keys, context.confirmed)

    async def take(self, request: HttpRequest, principal: Principal, name: str) -> HttpResponse:
        """POST /trajectories/{id}/snapshots: keep the files of its environment."""
        payload = decode(_snapshot, await request.body())
        checked_name(name, "trajectory")
        project = await self._context.project(request, principal)
        if await self._find(project, payload.name) is not None:
            raise Conflict(
                f"there is a snapshot {payload.name!r} already: remove it, or choose another name",
                pointer="/name",
                code="exists",
            )
        report = await self._context.queries.snapshot(project, name, payload.name, payload.on_busy)
        facts = await self._find(project, payload.name)
        if facts is None:
            raise Conflict(f"snapshot {payload.name!r} was removed meanwhile")
        details = _details(facts)
        details.way, details.seconds = report.way, report.seconds
        details.frozen_seconds = report.frozen_seconds
        return HttpResponse(201, details)

    async def park(self, request: HttpRequest, principal: Principal, name: str) -> HttpResponse:
        """POST /trajectories/{id}/park: freeze its environment until the next action."""
        await request.body()
        checked_name(name, "trajectory")
        project = await self._context.project(request, principal)
        async with self._context.node_door.request(project, name, "POST", "/park") as answer:
            report = _parked.decode(await answer.body())
        parked = ParkedEnvironment(name, project, report.reclaimed_bytes, report.seconds)
        return HttpResponse(200, parked)

    async def list(self, request: HttpRequest, principal: Principal) -> HttpResponse:
        """GET /snapshots: those of the project."""
        project = await self._context.project(request, principal)
        try:
            found = await self._registry.all(project)
        except redis.RedisError as error:
            raise unavailable(error) from None
        return HttpResponse(200, SnapshotList([_details(each) for each in found]))

    async def remove(self, request: HttpRequest, principal: Principal, name: str) -> HttpResponse:
        """DELETE /snapshots/{id}: forget it, and let its node delete the files that no other uses."""
        project = await self._context.project(request, principal)
        facts = await self._find(project, name)
        if facts is None:
            raise NotFound(f"there is no snapshot {name!r}")
        try:
            await self._registry.remove(facts)
        except redis.RedisError as error:
            raise unavailable(error) from None
        path = f"/snapshots/{project}/{name}"
        try:
            async with self._context.node_door.on_node(project, facts.node, "DELETE", path):
                pass
        except TangramError as error:  # its next start deletes what is not registered
            log.warning("snapshot %s stays on node %s for now: %s", name, facts.node, error)
        return HttpResponse(200, RemovedSnapshot(name, project, removed=True))

    async def _find(self, project: str, name: str) -> SnapshotFacts | None:
        try:
            return await self._registry.find(project, name)
        except redis.RedisError as error:
            raise unavailable(error) from None


def _details(facts: SnapshotFacts) -> SnapshotDetails:
    return SnapshotDetails(
        name=facts.name,
        project=facts.project,
        node=facts.node,
        trajectory=facts.trajectory,
        image=facts.image or None,
        size_bytes=facts.size_bytes,
        made_at=rfc3339(facts.made_at),
    )
