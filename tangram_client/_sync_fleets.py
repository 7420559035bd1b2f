"""Fleets of language models, blocking. Generated from `_async_fleets`: change that one.

``python -m tests.architecture.sync_client`` writes this module.
"""

from __future__ import annotations

from tangram_client import _fleet_calls
from tangram_client._fleet_calls import FleetInfo, FleetPlan
from tangram_client._sync_files import Sender


class FleetCalls:
    """Fleets; trajectories are of one project, None: the project of the token."""

    def __init__(self, sender: Sender, project: str | None) -> None:
        self._sender = sender
        self._project = project

    def status(self, fleet: str, *, limit: int | None = None) -> FleetInfo:
        """Return a fleet as it is now, with ``limit`` trajectories, longest first. Raises NotFound."""
        return self._sender.send(_fleet_calls.fleet_status(fleet, limit))

    def plan(self, fleet: str, *, limit: int | None = None) -> FleetPlan:
        """Return what an arrangement of all trajectories would change now; it changes nothing. Raises NotFound."""
        return self._sender.send(_fleet_calls.fleet_plan(fleet, limit))

    def drain(self, fleet: str, worker: str) -> None:
        """Let a worker get no further generation; what runs there continues. Raises NotFound."""
        self._sender.send(_fleet_calls.change_worker(fleet, worker, "drain"))

    def undrain(self, fleet: str, worker: str) -> None:
        """Let a drained worker get generations again. Raises NotFound."""
        self._sender.send(_fleet_calls.change_worker(fleet, worker, "undrain"))

    def pin(self, fleet: str, trajectory: str, worker: str) -> None:
        """Bind a trajectory that the fleet knows to a worker, from its next generation on. Raises NotFound."""
        if not worker:
            raise ValueError("worker is empty: name a worker, or end a pin with unpin()")
        self._pin(fleet, trajectory, worker)

    def unpin(self, fleet: str, trajectory: str) -> None:
        """Let the policy place a trajectory again. Raises NotFound."""
        self._pin(fleet, trajectory, "")

    def _pin(self, fleet: str, trajectory: str, worker: str) -> None:
        call = _fleet_calls.pin_trajectory(fleet, trajectory, worker, self._project)
        self._sender.send(call)
