"""Snapshots at a node's door: other nodes read them, web processes delete them."""

from __future__ import annotations

from collections.abc import Sequence

from domain.errors import NotFound
from domain.ports import Archiving, Driver
from scheduler.runtime.node.door.routes import DoorRequest, DoorResponse, DoorRoutes

_PATH = "/snapshots/{project}/{name}"


def add_snapshot_routes(routes: DoorRoutes, drivers: Sequence[Driver]) -> None:
    """Add the routes of the driver that has snapshots."""
    driver = next((each for each in drivers if isinstance(each, Archiving)), None)
    if driver is None:
        return
    keeper: Archiving = driver

    async def export(request: DoorRequest) -> DoorResponse:
        project, name = request.parameters["project"], request.parameters["name"]
        if (project, name) not in await keeper.snapshots():
            raise NotFound(f"there is no snapshot {name!r} on this node")
        return DoorResponse(body=keeper.export_snapshot(project, name))

    async def drop(request: DoorRequest) -> DoorResponse:
        await keeper.drop_snapshot(request.parameters["project"], request.parameters["name"])
        return DoorResponse(204)

    routes.add("GET", _PATH, export)
    routes.add("DELETE", _PATH, drop)
