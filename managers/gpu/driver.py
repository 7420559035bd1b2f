"""The driver of GPU services on one node: restore the service on its chunk, then forward the call.

Theory of operation. A grant names the chunk, the service, and the services to evict; `service_runner`
executes it. The call begins when the service answers: the time before is overhead, and part of the
result. Differences from what the ledger believes travel in the report as `ChunkReport`, so the ledger
follows what is really in memory.

Rules
1. A service whose declaration changed is ended, and started with the new one, once no call uses it.
2. A call that breaks off may leave a broken server: it is ended, and restored at the next request. So
   is a worker of engine ``torch`` after a call timed out: nothing else stops its computation.
3. Servers of a dead predecessor are ended before anything is granted (`engines.leftovers`), so a node
   joins with nothing in memory.
4. Memory of declared GPUs is what the services here do not take; real memory is measured.
5. A copy in host memory is made while no task uses these GPUs and there is room for it; this is tried
   for a few minutes.
6. Services take the part of the node's host memory that its inventory declares (`host_memory`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from domain.allocation import Home
from domain.apis import Reach
from domain.errors import InvalidRequest
from domain.events import ServicePrepared
from domain.inventory import ResourceInventory
from domain.ports import (
    DriverContext,
    Leftover,
    MemoryUse,
    PrepareOrder,
    RunOrder,
    RunReport,
    UnitUse,
)
from domain.services import GpuService, check_service_call
from managers.common.api_calls.egress import open_connections
from managers.common.request_driver import RequestDriver
from managers.gpu.engines import Server
from managers.gpu.engines.leftovers import end_leftovers, label_of
from managers.gpu.probe import NvmlMeter
from managers.gpu.service_call import CallTools, ServiceCall
from managers.gpu.service_host import PLACEMENT_ERRORS, ServiceHost
from managers.gpu.worker_engine import EngineRun, engine_run

_log = logging.getLogger(__name__)

#: Part of each GPU's memory that a program of its own finds free, in thousandths: drivers keep some.
CLEAR_PER_MILLE: Final = 900


class GpuDriver(RequestDriver):
    """Serves calls to GPU services, and runs the engines of workers of fleets (`worker_engine`)."""

    def __init__(
        self,
        context: DriverContext,
        *,
        make_server: Callable[[GpuService, Home], Server] | None = None,
        free_bytes: Callable[[int], int] | None = None,
        patience_seconds: float = 10.0,
    ) -> None:
        """``make_server`` and ``free_bytes`` stand in for engines and for measured memory."""
        super().__init__(context.state_directory)
        self._context = context
        self._inventory = context.resources.get("gpu", ResourceInventory(0))
        self._use: Callable[[int], UnitUse | None] = lambda _: None
        self._services = ServiceHost(
            context.state_directory,
            self._inventory,
            make_server=make_server,
            free_bytes=free_bytes,
            patience_seconds=patience_seconds,
            open_secret=context.open_secret,
        )
        self.runner = self._services.runner
        self._tools: CallTools

    async def open(self) -> list[Leftover]:
        """End servers of a dead predecessor; return the calls that it may have made."""
        left = await super().open()
        services = self._services
        services.label = label_of(self._directory)
        if ended := await asyncio.to_thread(end_leftovers, services.label):
            _log.warning("ended %d processes of services that outlived their node worker", ended)
        real = self._inventory.capacity and not self._inventory.oversubscribed
        if services.measure is None and real:
            meter = NvmlMeter()
            services.measure, services.pids, self._use = meter.free_bytes, meter.pids, meter.use
        connections = open_connections(Reach.LOOPBACK)
        self._tools = CallTools(services, connections, self._context.response_streams)
        return left

    def measured(self) -> dict[int, UnitUse]:
        """Return the use of each real GPU; a declared one has no card, so it has no use."""
        uses = {unit: self._use(unit) for group in self._inventory.groups for unit in group}
        return {unit: use for unit, use in uses.items() if use is not None}

    def host_memory(self) -> MemoryUse:
        """Return the host memory that services take, and their limit."""
        return MemoryUse(self.runner.host.used_bytes, self.runner.host.capacity_bytes)

    def residents(self) -> tuple[Home, ...]:
        """Return the services in memory."""
        return self._services.residents()

    def begin(self, order: RunOrder, started: Callable[[], None]) -> ServiceCall | EngineRun:
        """Check an accepted call again: the declaration of its service may have changed."""
        if order.action.engine is not None:
            return engine_run(
                order, self._context, self._services.label, self.clear,
                self.sending(order, started),
            )  # fmt: skip
        call, service = order.action.call, order.service
        chunk = order.allocation("gpu")
        if call is None or service is None or chunk is None or chunk.hosting is None:
            target = call.target if call is not None else "nothing"
            raise InvalidRequest(f"{target} is not a service that is declared now")
        check_service_call(call, service)
        sending = self.sending(order, started)
        return ServiceCall(self._tools, order, call, service, chunk, chunk.hosting, sending)

    async def clear(self, order: RunOrder) -> RunReport | None:
        """Evict all services for an action that brings its own program; a report when that fails."""
        chunk = order.allocation("gpu")
        if chunk is None:
            return None
        needed = self._inventory.memory_bytes * CLEAR_PER_MILLE // 1000
        try:
            await self.runner.clear(chunk.units, needed)
        except PLACEMENT_ERRORS as error:
            return self._services.failure_report(error)
        return None

    async def evict(self, home: Home) -> None:
        """Evict the service at ``home``, unless a call uses it."""
        await self.runner.evict((home.service, home.units))

    async def prepare(self, order: PrepareOrder) -> ServicePrepared:
        """Prefetch a service, or its copy in host memory; nothing is evicted for it."""
        return await self._services.prepare(order, self._context.node)

    async def close(self) -> None:
        """End all calls, services and connections."""
        await super().close()
        await self.runner.close()
        await self._tools.connections.aclose()
