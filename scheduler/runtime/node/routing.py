"""Routing of orders to the drivers of a node, and the eviction of services from GPUs before a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from domain.action import Kind, Outcome
from domain.ids import ActionId
from domain.inventory import ResourceInventory
from domain.ports import Driver, HostDriver, RunOrder, RunReport
from domain.services import service_name


class DriverRouting:
    """The drivers of one node."""

    def __init__(self, drivers: Sequence[Driver]) -> None:
        self._host = next((each for each in drivers if isinstance(each, HostDriver)), None)
        #: Actions that wait for empty GPUs → outcome and reason, once stopped.
        self._preparing: dict[ActionId, tuple[Outcome, str] | None] = {}
        #: Calls to services and engines of fleets are routed to the host driver, all others by their kind.
        self.by_kind: dict[Kind, Driver] = {
            kind: driver for driver in drivers if driver is not self._host for kind in driver.kinds
        }

    def of(self, order: RunOrder) -> Driver | None:
        """Return the driver of ``order``; None when the node has none."""
        if order.action.engine is not None:
            return self._host
        call = order.action.call
        if call is not None and service_name(call.target) is not None:
            return self._host
        return self.by_kind.get(order.action.kind)

    async def prepare(self, order: RunOrder, driver: Driver) -> RunReport | None:
        """Empty the GPUs of an action that runs a program of its own; a report when that fails."""
        if self._host is None or driver is self._host or order.allocation("gpu") is None:
            return None
        self._preparing[order.id] = None
        try:
            failure = await self._host.clear(order)
        finally:
            stopped = self._preparing.pop(order.id)
        if stopped is None:
            return failure
        outcome, reason = stopped
        chunk = None if failure is None else failure.chunk
        return RunReport(outcome, 0.0, detail=reason, never_started=True, chunk=chunk)

    def stop(self, action_id: ActionId, outcome: Outcome, reason: str) -> None:
        """End an action whose GPUs are still being emptied; drivers end all others."""
        if action_id in self._preparing:
            self._preparing[action_id] = outcome, reason

    def resources(self, declared: Mapping[str, ResourceInventory]) -> dict[str, ResourceInventory]:
        """Return the resources of the node, with the services in the memory of its GPUs."""
        have = dict(declared)
        if self._host is not None and "gpu" in have:
            have["gpu"] = replace(have["gpu"], residents=self._host.residents())
        return have
