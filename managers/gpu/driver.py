"""The driver of GPU services on one node: bring the service to its chunk, then forward the call.

Theory of operation. A grant names the chunk, the service, and who leaves first; the `Keeper` does
that. The call begins when the service answers: what came before is overhead, and its length is part
of the result. Whatever ended differently from what the ledger believes travels in the report as
`ChunkNews`, so the books follow what is really in memory.

Rules
1. A service that is declared otherwise than when it was started is ended, and started anew, once no
   call is with it any more.
2. What breaks off a call may have broken the server: it is ended, and is restored when wanted next. So
   is a worker of engine ``torch`` whose call ran out of time: nothing else stops what it works on.
3. What a dead predecessor left running is ended before anything is granted (`leftovers`), so a node
   joins with nothing in memory.
4. Memory of declared GPUs is what nobody here takes; real memory is measured.
5. A copy for host memory is made when nobody needs these GPUs and there is room for it, which is tried
   for a few minutes.
6. Services take the part of the node's host memory that its inventory says (`host`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

import httpcore
from msgspec.structs import replace

from domain.action import Outcome
from domain.allocation import Home
from domain.apis import Reach
from domain.errors import InvalidRequest
from domain.events import ChunkNews, ServicePrepared
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
from domain.services import Engine, GpuService, check_service_call
from managers.common.api_calls.driver import open_connections
from managers.common.request_driver import RequestDriver
from managers.gpu.call import TROUBLES, ServiceCall, cannot_work_there
from managers.gpu.engines import EngineFailed, Server
from managers.gpu.engines.leftovers import end_leftovers, label_of
from managers.gpu.engines.process import ProcessServer
from managers.gpu.engines.sleeping import SleepingServer
from managers.gpu.engines.torch import TorchServer
from managers.gpu.host_memory import HostMemory
from managers.gpu.memory_meter import NvmlMeter
from managers.gpu.service_runner import Keeper, MemoryNotFreed, NoRoom, Units

log = logging.getLogger(__name__)

#: A program of its own finds this part of each GPU's memory free, in thousandths: drivers keep some.
CLEAR_PER_MILLE: Final = 900
#: How long it is waited between attempts to prepare a service where GPUs are in use.
_PREPARE_PAUSES_SECONDS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 80.0)

_SERVERS: Final[dict[Engine, type[ProcessServer]]] = {
    Engine.PROCESS: ProcessServer,
    Engine.VLLM: SleepingServer,
    Engine.SGLANG: SleepingServer,
    Engine.TORCH: TorchServer,
}


class GpuDriver(RequestDriver):
    """Serves calls to GPU services."""

    def __init__(
        self,
        context: DriverContext,
        *,
        make_server: Callable[[GpuService, Home], Server] | None = None,
        free_bytes: Callable[[int], int] | None = None,
        patience_seconds: float = 10.0,
    ) -> None:
        """``make_server`` and ``free_bytes`` stand in for engines and for the measuring of memory."""
        super().__init__(context.state_directory)
        self.passages = context.passages
        self._node = context.node
        self._have = context.resources.get("gpu", ResourceInventory(0))
        self._make_server = make_server or self._engine
        self._measure = free_bytes
        self._pids: Callable[[int], list[int]] = lambda _: []
        self._use: Callable[[int], UnitUse | None] = lambda _: None
        self._declared: dict[str, GpuService] = {}
        #: What is kept, as it was declared then, and the memory of each GPU that it takes.
        self._made: dict[Home, tuple[GpuService, int]] = {}
        host = HostMemory(
            self._have.host_memory_bytes,
            lambda home: self._made[Home(*home)][0].host_bytes(len(home[1])),
        )
        self.keeper = Keeper(self._make, self._free_bytes, patience_seconds, host)
        self.connections: httpcore.AsyncConnectionPool

    async def open(self) -> list[Leftover]:
        """End what a dead predecessor left running; return which calls it may have made."""
        left = await super().open()
        self._label = label_of(self._directory)
        if ended := await asyncio.to_thread(end_leftovers, self._label):
            log.warning("ended %d processes of services that outlived their node worker", ended)
        if self._measure is None and self._have.capacity and not self._have.oversubscribed:
            meter = NvmlMeter()
            self._measure, self._pids, self._use = meter.free_bytes, meter.pids, meter.use
        self.connections = open_connections(Reach.LOOPBACK)
        return left

    def measured(self) -> dict[int, UnitUse]:
        """Return what each GPU does; nothing of declared ones."""
        uses = {unit: self._use(unit) for group in self._have.groups for unit in group}
        return {unit: use for unit, use in uses.items() if use is not None}

    def host_memory(self) -> MemoryUse:
        """Return the host memory that services take, and what they may take."""
        host = self.keeper.host
        return MemoryUse(host.used_bytes, host.capacity_bytes)

    def residents(self) -> tuple[Home, ...]:
        """Return which services are in memory."""
        return tuple(Home(*home) for home in self.keeper.in_memory())

    def begin(self, order: RunOrder, started: Callable[[], None]) -> ServiceCall:
        """Check once more what was accepted: the service may be declared otherwise by now."""
        call, service = order.action.call, order.service
        chunk = order.allocation("gpu")
        if call is None or service is None or chunk is None or chunk.hosting is None:
            target = call.target if call is not None else "nothing"
            raise InvalidRequest(f"{target} is not a service that is declared now")
        check_service_call(call, service)
        return ServiceCall(self, order, call, service, chunk, chunk.hosting, started)

    async def clear(self, order: RunOrder) -> RunReport | None:
        """Make room for an action that brings its own program; a report when that fails."""
        chunk = order.allocation("gpu")
        if chunk is None:
            return None
        try:
            await self.keeper.clear(chunk.units, self._have.memory_bytes * CLEAR_PER_MILLE // 1000)
        except TROUBLES as trouble:
            return self.failed(trouble)
        return None

    async def evict(self, home: Home) -> None:
        """Let a service leave the memory at ``home``, unless it works there again."""
        await self.keeper.evict((home.service, home.units))

    async def close(self) -> None:
        """End all calls, services and connections."""
        await super().close()
        await self.keeper.close()
        await self.connections.aclose()

    async def bring(self, service: GpuService, home: Home, memory_bytes: int, order: RunOrder,
                    evicted: tuple[Home, ...]) -> Server:  # fmt: skip
        """Let ``service`` answer at ``home``. Raises EngineFailed, MemoryNotFreed, Conflict."""
        needed = service.memory_bytes(len(home.units))
        if needed > self._have.memory_bytes:
            have = self._have.memory_bytes
            raise EngineFailed(f"it needs {needed} bytes of each GPU, there are {have}")
        memory_bytes = await self._declare(service, home, memory_bytes)
        return await self.keeper.hold(order.mark, home, memory_bytes, evicted)

    async def prepare(self, order: PrepareOrder) -> ServicePrepared:
        """Get a service ready for nobody; nobody leaves for it.

        Only a copy in host memory is tried again (rule 5).
        """
        began, home, failed = asyncio.get_running_loop().time(), order.home, ""
        shunned: tuple[Home, ...] = ()
        try:
            memory_bytes = await self._declare(order.service, home, order.memory_bytes)
            await self._come(home, memory_bytes, awake=order.awake)
        except TROUBLES as trouble:
            failed = str(trouble)
            if cannot_work_there(trouble):
                shunned = (home,)
        seconds = asyncio.get_running_loop().time() - began
        return ServicePrepared(
            node=self._node,
            home=home,
            seconds=seconds,
            failed=failed,
            awake=order.awake,
            chunk=replace(self.news(home if order.awake else None), failed=shunned),
        )

    async def _come(self, home: Home, memory_bytes: int, *, awake: bool) -> None:
        for pause_seconds in _PREPARE_PAUSES_SECONDS if not awake else ():
            with contextlib.suppress(NoRoom):
                await self.keeper.come(home, memory_bytes, awake=False)
                return
            await asyncio.sleep(pause_seconds)
        await self.keeper.come(home, memory_bytes, awake=awake)

    async def _declare(self, service: GpuService, home: Home, memory_bytes: int) -> int:
        """Note how a service is declared now, and end what is kept of another declaration (rule 1).

        Return what it takes of each GPU: what it took, where others are still being served.
        """
        self._declared[home.service] = service
        known = self._made.get(home)
        if known is not None and known[0] != service:
            await self.keeper.forget(home)
            if self.keeper.kept(home):
                service, memory_bytes = known
        self._made[home] = service, memory_bytes
        return memory_bytes

    def failed(self, trouble: Exception) -> RunReport:
        """Report that a chunk could not be made ready; nothing was sent."""
        stuck = trouble.units if isinstance(trouble, MemoryNotFreed) else ()
        pids = sorted({pid for unit in stuck for pid in self._pids(unit)})
        who = f"; processes there: {', '.join(map(str, pids))}" if pids else ""
        return RunReport(
            Outcome.INFRA_FAILED,
            0.0,
            detail=f"{trouble}{who}",
            never_started=True,
            chunk=self.news(stuck=stuck),
        )

    def news(
        self, home: Home | None = None, restore_seconds: float = 0.0, stuck: tuple[int, ...] = ()
    ) -> ChunkNews:
        """Return what the books are to be told, after a call at ``home``."""
        gone = {Home(*each) for each in self.keeper.take_lost()}
        if home is not None and home not in self.keeper.in_memory():
            gone.add(home)
        return ChunkNews(tuple(sorted(gone)), stuck, restore_seconds)

    def _make(self, name: str, units: Units) -> Server:
        return self._make_server(self._declared[name], Home(name, units))

    def _engine(self, service: GpuService, home: Home) -> Server:
        make = _SERVERS[service.engine]
        directory = (
            self._directory / "servers" / f"{home.service}@{home.units[0]}-{len(home.units)}"
        )
        return make(service, home.units, directory, label=self._label)

    def _free_bytes(self, unit: int) -> int:
        if self._measure is not None:
            return self._measure(unit)
        taken = sum(
            self._made[Home(*home)][1] for home in self.keeper.in_memory() if unit in home[1]
        )
        return self._have.memory_bytes - taken
