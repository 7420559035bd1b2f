"""Which driver runs an order, and what has to happen in the memory of GPUs before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from domain.action import Kind, Outcome
from domain.ids import ActionId
from domain.inventory import ResourceInventory
from domain.ports import Driver, HostDriver, RunOrder, RunReport
from domain.services import service_name


class Routing:
    """The drivers of one node."""

    def __init__(self, drivers: Sequence[Driver]) -> None:
        self._host = next((each for each in drivers if isinstance(each, HostDriver)), None)
        #: Who waits for empty GPUs, and how it shall end if somebody has stopped it.
        self._preparing: dict[ActionId, tuple[Outcome, str] | None] = {}
        #: Calls to services are the host's; all else goes by its kind.
        self.by_kind: dict[Kind, Driver] = {
            kind: driver for driver in drivers if driver is not self._host for kind in driver.kinds
        }

    def of(self, order: RunOrder) -> Driver | None:
        """Return who runs ``order``."""
        call = order.action.call
        if call is not None and service_name(call.target) is not None:
            return self._host
        return self.by_kind.get(order.action.kind)

    async def prepare(self, order: RunOrder, driver: Driver) -> RunReport | None:
        """Empty the GPUs of an action that brings its own program; a report when that fails."""
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
        """End an action whose GPUs are still being emptied; others are their drivers'."""
        if action_id in self._preparing:
            self._preparing[action_id] = outcome, reason

    def resources(self, declared: Mapping[str, ResourceInventory]) -> dict[str, ResourceInventory]:
        """Return what the node offers, with what is in the memory of its GPUs."""
        have = dict(declared)
        if self._host is not None and "gpu" in have:
            have["gpu"] = replace(have["gpu"], residents=self._host.residents())
        return have
