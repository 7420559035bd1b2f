"""Environments and their programs over the node door.

``GET /environment``, ``GET /processes`` and ``DELETE /processes/{pid}?signal=``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from domain.errors import NotFound
from domain.ports import Driver
from domain.ports.processes import EndSignal, EnvironmentInspecting, ProcessServing
from scheduler.runtime.node.door.routes import DoorRequest, DoorResponse, DoorRoutes, NotHere

_JSON: Final = {"Content-Type": "application/json"}


def add_routes(routes: DoorRoutes, drivers: Sequence[Driver]) -> None:
    """Add the routes."""
    handlers = ProcessHandlers(drivers)
    routes.add("GET", "/environment", handlers.inspect)
    routes.add("GET", "/processes", handlers.show)
    routes.add("DELETE", "/processes/{pid}", handlers.end)


class ProcessHandlers:
    """Handlers of the programs of environments."""

    def __init__(self, drivers: Sequence[Driver]) -> None:
        self._drivers = drivers

    async def inspect(self, request: DoorRequest) -> DoorResponse:
        """Show the state of an environment."""
        for driver in self._drivers:
            if isinstance(driver, EnvironmentInspecting):
                found = driver.inspect_environment(request.trajectory)
                return DoorResponse(200, msgspec.json.encode(found), _JSON)
        raise NotHere(request.trajectory)

    async def show(self, request: DoorRequest) -> DoorResponse:
        """List the programs of an environment."""
        found = self._serving(request).list_processes(request.trajectory)
        return DoorResponse(200, msgspec.json.encode(found), _JSON)

    async def end(self, request: DoorRequest) -> DoorResponse:
        """End a program, or send it SIGTERM."""
        pid = request.parameters["pid"]
        if not pid.isdecimal():
            raise NotFound(f"no program {pid!r} runs in this environment")
        by: EndSignal = "SIGTERM" if request.query.get("signal") == "SIGTERM" else "SIGKILL"
        ended = self._serving(request).end_process(request.trajectory, int(pid), by)
        return DoorResponse(200, msgspec.json.encode(ended), _JSON)

    def _serving(self, request: DoorRequest) -> ProcessServing:
        # A driver knows its environments once it is open.
        for driver in self._drivers:
            environments = getattr(driver, "environments", None)
            if isinstance(environments, ProcessServing):
                return environments
        raise NotHere(request.trajectory)
