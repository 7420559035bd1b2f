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
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import httpcore
from msgspec.structs import replace

from domain.action import Outcome
from domain.allocation import Allocation, Home, Hosting
from domain.apis import ApiConfig, CallSpec, Reach, ServiceResult
from domain.errors import Conflict, InvalidRequest
from domain.events import ChunkNews
from domain.inventory import ResourceInventory
from domain.ports import DriverContext, Leftover, RunOrder, RunReport
from domain.services import Engine, GpuService, check_service_call
from managers.gpu.engines import EngineFailed, Server
from managers.gpu.engines.leftovers import end_leftovers, label_of
from managers.gpu.engines.process import ProcessServer
from managers.gpu.engines.sleeping import SleepingServer
from managers.gpu.engines.torch import TorchServer
from managers.gpu.keeper import Keeper, MemoryNotFreed, Units
from managers.gpu.measure import NvmlMeter
from managers.quota.calls.driver import open_connections
from managers.quota.calls.exchange import Attempt, exchange
from managers.requests import RequestDriver

log = logging.getLogger(__name__)

#: Longest time for one call of an action that declares no limit.
CALL_SECONDS: Final = 3600.0
#: Bytes of an answer that are kept.
ANSWER_BYTES: Final = 2**20
#: A program of its own finds this part of each GPU's memory free, in thousandths: drivers keep some.
CLEAR_PER_MILLE: Final = 900

_SERVERS: Final[dict[Engine, type[ProcessServer]]] = {
    Engine.PROCESS: ProcessServer,
    Engine.VLLM: SleepingServer,
    Engine.SGLANG: SleepingServer,
    Engine.TORCH: TorchServer,
}

#: Ends of a call after which nobody knows what its server does.
_BROKEN: Final = frozenset({Outcome.INFRA_FAILED, Outcome.UNKNOWN})
_TROUBLES: Final = (EngineFailed, MemoryNotFreed, Conflict)


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
        self._have = context.resources.get("gpu", ResourceInventory(0))
        self._make_server = make_server or self._engine
        self._measure = free_bytes
        self._pids: Callable[[int], list[int]] = lambda _: []
        self._declared: dict[str, GpuService] = {}
        #: What is kept, as it was declared then, and the memory of each GPU that it takes.
        self._made: dict[Home, tuple[GpuService, int]] = {}
        self.keeper = Keeper(self._make, self._free_bytes, patience_seconds)
        self.connections: httpcore.AsyncConnectionPool

    async def open(self) -> list[Leftover]:
        """End what a dead predecessor left running; return which calls it may have made."""
        left = await super().open()
        self._label = label_of(self._directory)
        if ended := await asyncio.to_thread(end_leftovers, self._label):
            log.warning("ended %d processes of services that outlived their node worker", ended)
        if self._measure is None and self._have.capacity and not self._have.oversubscribed:
            meter = NvmlMeter()
            self._measure, self._pids = meter.free_bytes, meter.pids
        self.connections = open_connections(Reach.LOOPBACK)
        return left

    def residents(self) -> tuple[Home, ...]:
        """Return which services are in memory."""
        return tuple(Home(*home) for home in self.keeper.in_memory())

    def begin(self, order: RunOrder, started: Callable[[], None]) -> _ServiceCall:
        """Check once more what was accepted: the service may be declared otherwise by now."""
        call, service = order.action.call, order.service
        chunk = order.allocation("gpu")
        if call is None or service is None or chunk is None or chunk.hosting is None:
            target = call.target if call is not None else "nothing"
            raise InvalidRequest(f"{target} is not a service that is declared now")
        check_service_call(call, service)
        return _ServiceCall(self, order, call, service, chunk, chunk.hosting, started)

    async def clear(self, order: RunOrder) -> RunReport | None:
        """Make room for an action that brings its own program; a report when that fails."""
        chunk = order.allocation("gpu")
        if chunk is None:
            return None
        try:
            await self.keeper.clear(chunk.units, self._have.memory_bytes * CLEAR_PER_MILLE // 1000)
        except _TROUBLES as trouble:
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
        self._declared[home.service] = service
        known = self._made.get(home)
        if known is not None and known[0] != service:
            await self.keeper.forget(home)
            if self.keeper.kept(home):  # others are still being served as it was declared then
                service, memory_bytes = known
        self._made[home] = service, memory_bytes
        return await self.keeper.hold(order.mark, home, memory_bytes, evicted)

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


class _ServiceCall:
    """One attempt at a call: restore, ask, let go."""

    def __init__(
        self,
        driver: GpuDriver,
        order: RunOrder,
        call: CallSpec,
        service: GpuService,
        chunk: Allocation,
        hosting: Hosting,
        started: Callable[[], None],
    ) -> None:
        self._driver = driver
        self._order = order
        self._call = call
        self._service = service
        self._hosting = hosting
        self._home = Home(hosting.service, chunk.units)
        self._started = started
        self._attempt: Attempt | None = None
        self._restore_seconds = 0.0

    @property
    def sent(self) -> bool:
        """The first byte of the request may have gone out."""
        return self._attempt is not None and self._attempt.sent

    def seconds(self) -> float:
        """Return how long the request has been with the service."""
        return 0.0 if self._attempt is None else self._attempt.seconds()

    async def run(self) -> RunReport:
        """Bring the service home and ask it."""
        driver, hosting = self._driver, self._hosting
        began = asyncio.get_running_loop().time()
        try:
            server = await driver.bring(
                self._service, self._home, hosting.memory_bytes, self._order, hosting.evicted
            )
        except _TROUBLES as trouble:
            report = driver.failed(trouble)
            detail = f"service {self._home.service}: {report.detail}"
            gone = self._driver.news(self._home).gone
            told = report.chunk or ChunkNews()
            told = replace(told, gone=tuple(sorted({*told.gone, *gone})))
            return replace(report, detail=detail, chunk=told)
        self._restore_seconds = asyncio.get_running_loop().time() - began
        try:
            report = await self._ask(server)
        finally:
            driver.keeper.let_go(self._order.mark, self._home)
        if report.outcome in _BROKEN or (
            report.outcome is Outcome.TIMEOUT and self._service.engine is Engine.TORCH
        ):
            await driver.keeper.discard(self._home)
        return replace(report, chunk=driver.news(self._home, self._restore_seconds))

    async def _ask(self, server: Server) -> RunReport:
        api = ApiConfig(server.base_url, reach=Reach.LOOPBACK, response_limit_bytes=ANSWER_BYTES)
        limit = self._order.action.timeout_seconds or CALL_SECONDS
        sending = self._driver.sending(self._order, self._started)
        passages = self._driver.passages if self._call.stream else None
        passage = passages.open(self._order.id) if passages is not None else None
        self._attempt = Attempt(self._call, api, "", limit, sending, passage)
        report = replace(await exchange(self._driver.connections, self._attempt), feedback=None)
        if report.answer is None:
            return report
        answer = ServiceResult(
            *(getattr(report.answer, name) for name in report.answer.__struct_fields__),
            cached=self._hosting.cached,
            restore_seconds=self._restore_seconds,
            evicted=tuple(home.service for home in self._hosting.evicted),
        )
        return replace(report, answer=answer)

    def stopped(self, report: RunReport) -> RunReport:
        """Say what is in memory now; a restore that nobody waits for goes on."""
        return replace(report, chunk=self._driver.news(self._home, self._restore_seconds))
