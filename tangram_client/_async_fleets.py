"""Fleets of language models: their status, drains, pins, and dry runs of arrangements."""

from __future__ import annotations

from tangram_client import _fleet_calls
from tangram_client._async_files import AsyncSender
from tangram_client._fleet_calls import FleetInfo, FleetPlan


class AsyncFleetCalls:
    """Fleets; trajectories are of one project, None: the project of the token."""

    def __init__(self, sender: AsyncSender, project: str | None) -> None:
        self._sender = sender
        self._project = project

    async def status(self, fleet: str, *, limit: int | None = None) -> FleetInfo:
        """Return a fleet as it is now, with ``limit`` trajectories, longest first. Raises NotFound."""
        return await self._sender.send(_fleet_calls.fleet_status(fleet, limit))

    async def plan(self, fleet: str, *, limit: int | None = None) -> FleetPlan:
        """Return what an arrangement of all trajectories would change now; it changes nothing. Raises NotFound."""
        return await self._sender.send(_fleet_calls.fleet_plan(fleet, limit))

    async def drain(self, fleet: str, worker: str) -> None:
        """Let a worker get no further generation; what runs there continues. Raises NotFound."""
        await self._sender.send(_fleet_calls.change_worker(fleet, worker, "drain"))

    async def undrain(self, fleet: str, worker: str) -> None:
        """Let a drained worker get generations again. Raises NotFound."""
        await self._sender.send(_fleet_calls.change_worker(fleet, worker, "undrain"))

    async def pin(self, fleet: str, trajectory: str, worker: str) -> None:
        """Bind a trajectory that the fleet knows to a worker, from its next generation on. Raises NotFound."""
        if not worker:
            raise ValueError("worker is empty: name a worker, or end a pin with unpin()")
        await self._pin(fleet, trajectory, worker)

    async def unpin(self, fleet: str, trajectory: str) -> None:
        """Let the policy place a trajectory again. Raises NotFound."""
        await self._pin(fleet, trajectory, "")

    async def _pin(self, fleet: str, trajectory: str, worker: str) -> None:
        call = _fleet_calls.pin_trajectory(fleet, trajectory, worker, self._project)
        await self._sender.send(call)
