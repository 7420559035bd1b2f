"""Areas of a node door: each function adds the routes of one area."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from domain.ports import Driver
from scheduler.runtime.body_store import BodyStore
from scheduler.runtime.node.door import (
    files,
    images,
    objects,
    outputs,
    parking,
    ports,
    processes,
    sessions,
    snapshots,
    watching,
)
from scheduler.runtime.node.door.routes import DoorRoutes
from scheduler.runtime.object_store.objects import ObjectStore

#: Called once with the table and the drivers of the node.
AREAS: tuple[Callable[[DoorRoutes, Sequence[Driver]], None], ...] = (
    files.add_routes,
    images.add_routes,
    objects.add_routes,
    outputs.add_routes,
    ports.add_routes,
    processes.add_routes,
    sessions.add_routes,
    parking.add_parking_routes,
    snapshots.add_snapshot_routes,
    watching.add_routes,
)


def door_routes(
    drivers: Sequence[Driver],
    objects: ObjectStore | None = None,
    bodies: BodyStore | None = None,
) -> DoorRoutes:
    """Return the routes of all areas."""
    routes = DoorRoutes(objects, bodies)
    for add_routes in AREAS:
        add_routes(routes, drivers)
    return routes
