"""One attempt at a call of a GPU service on one chunk: restore, ask, let go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from domain.action import Outcome
from domain.allocation import Allocation, Home, Hosting
from domain.apis import ApiConfig, CallSpec, Reach, ServiceResult
from domain.errors import Conflict
from domain.events import ChunkNews
from domain.ports import RunOrder, RunReport
from domain.services import Engine, GpuService
from managers.common.api_calls.exchange import Attempt, exchange
from managers.gpu.engines import EngineFailed, Server
from managers.gpu.host_memory import NoRoom
from managers.gpu.room import MemoryNotFreed

if TYPE_CHECKING:
    from managers.gpu.driver import GpuDriver

#: Longest time for one call of an action that declares no limit.
CALL_SECONDS: Final = 3600.0
#: Bytes of an answer that are kept.
ANSWER_BYTES: Final = 2**20
#: What may be in the way of bringing a service to its chunk.
TROUBLES: Final = (EngineFailed, MemoryNotFreed, Conflict)
#: Ends of a call after which nobody knows what its server does.
_BROKEN: Final = frozenset({Outcome.INFRA_FAILED, Outcome.UNKNOWN})


def cannot_work_there(trouble: Exception) -> bool:
    """Say whether a service is better brought elsewhere; not because others had its room just then."""
    return isinstance(trouble, EngineFailed) and not isinstance(trouble, NoRoom)


class ServiceCall:
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
        except TROUBLES as trouble:
            report = driver.failed(trouble)
            detail = f"service {self._home.service}: {report.detail}"
            gone = self._driver.news(self._home).gone
            told = report.chunk or ChunkNews()
            failed = (self._home,) if cannot_work_there(trouble) else ()
            told = replace(told, gone=tuple(sorted({*told.gone, *gone})), failed=failed)
            return replace(report, detail=detail, chunk=told)
        self._restore_seconds = asyncio.get_running_loop().time() - began
        try:
            report = await self._ask(server)
        finally:
            driver.keeper.let_go(self._order.mark, self._home)
        hangs = report.outcome is Outcome.TIMEOUT and self._service.engine is Engine.TORCH
        if hangs or report.outcome in _BROKEN:
            await driver.keeper.discard(self._home, later=hangs)
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
