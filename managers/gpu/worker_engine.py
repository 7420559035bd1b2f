"""Engines of workers of our own on a node: processes that run as long as their actions do.

An order names the command and the port (`domain.fleet_engines`), its grant the chunk. The services cached there are evicted, then the
engine starts, in a session of its own as servers of services do (`engines.process`): without secrets of the node worker, with the
GPUs of its chunk alone, and with the label by which a successor of this node worker ends what it left.

Rules
1. The action runs as long as its engine. Its end is `completed` with the exit status and the last words, whatever the status: the
   keeper of fleets decides what follows.
2. A stop ends the whole session of the engine before the chunk is released.
3. It listens where web processes reach this node: on the interface of the node door, or on the loopback of a node that has none.
4. The node does not ask an engine whether it answers: the keeper does, by the address that routers use.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from domain.action import Outcome
from domain.allocation import Allocation
from domain.errors import InvalidRequest, TangramError
from domain.fleet_engines import WorkerProcess, filled
from domain.ports import DriverContext, ExecResult, RunOrder, RunReport
from domain.services import Degree, Engine, GpuService
from managers.gpu.engines import EngineFailed
from managers.gpu.engines.process import ProcessServer
from managers.gpu.engines.torch_library import (
    link_torch_worker,
    runs_torch_worker,
    with_torch_worker,
)

#: Folder of engines: fleet, worker, and there its output, that of its former engine beside it.
FOLDER: Final = "engines"
_LOOPBACK: Final = "127.0.0.1"
#: Requests that run may end by themselves when an engine is asked to.
_GRACE_SECONDS: Final = 10.0


class WorkerEngine(ProcessServer):
    """The process of one engine."""

    async def start(self, port: int) -> None:
        """Start it. Raises EngineFailed for a program that cannot be run."""
        with contextlib.suppress(FileNotFoundError):
            self._output.replace(self._output.with_name("former.log"))
        if self._is_torch:
            link_torch_worker(self._directory)
        await self._spawn(str(port))

    def _environment(self) -> dict[str, str]:
        variables = super()._environment()
        return with_torch_worker(variables, self._directory) if self._is_torch else variables

    @property
    def _is_torch(self) -> bool:
        return runs_torch_worker(self._service.command)

    async def ended(self) -> int:
        """Wait until it has ended by itself; return its exit status."""
        assert self._process is not None  # it was started
        return await self._process.wait()

    def last_words(self) -> str:
        """Return the end of its output."""
        return self._last_words().removeprefix("; its last words: ")


class EngineRun:
    """One attempt at the action of an engine (`managers.common.request_driver.RequestAttempt`)."""

    def __init__(
        self,
        order: RunOrder,
        engine: WorkerEngine,
        port: int,
        clear: Callable[[RunOrder], Awaitable[RunReport | None]],
        sending: Callable[[], Awaitable[None]],
    ) -> None:
        """``clear`` evicts the services from its chunk; ``sending`` is awaited before its start."""
        self._order, self._engine, self._port = order, engine, port
        self._clear, self._sending = clear, sending
        self._began_at: float | None = None

    @property
    def sent(self) -> bool:
        """It may have been started."""
        return self._began_at is not None

    def seconds(self) -> float:
        """Return the time since its start."""
        now = asyncio.get_running_loop().time()
        return 0.0 if self._began_at is None else now - self._began_at

    async def run(self) -> RunReport:
        """Run the engine until it ends by itself."""
        failure = await self._clear(self._order)
        if failure is not None:
            return failure
        await self._sending()
        self._began_at = asyncio.get_running_loop().time()
        try:
            await self._engine.start(self._port)
            status = await self._engine.ended()
        except EngineFailed as error:
            return self._report(127, str(error))
        finally:
            await self._engine.close()
        return self._report(status, self._engine.last_words())

    def _report(self, status: int, words: str) -> RunReport:
        detail = f"the engine ended with exit status {status}{words and ': '}{words}"
        result = ExecResult(status, "", words)
        return RunReport(Outcome.COMPLETED, self.seconds(), result, detail)

    def stopped(self, report: RunReport) -> RunReport:
        """Return the report of an engine that was stopped."""
        return report


def _asked(order: RunOrder) -> tuple[WorkerProcess, Allocation]:
    """Return what an order asks for, and where. Raises InvalidRequest for one without a chunk."""
    process, chunk = order.action.engine, order.allocation("gpu")
    if process is None or chunk is None:
        raise InvalidRequest("an engine needs a chunk of GPUs")
    return process, chunk


def engine_run(
    order: RunOrder,
    context: DriverContext,
    label: Mapping[str, str],
    clear: Callable[[RunOrder], Awaitable[RunReport | None]],
    sending: Callable[[], Awaitable[None]],
) -> EngineRun:
    """Return the attempt at an order, whose output is kept below the state of the node. Raises InvalidRequest."""
    process, chunk = _asked(order)
    work = order.action.exec
    if work is None:
        raise InvalidRequest("an engine needs a command")
    try:
        env = {name: context.open_secret(text) for name, text in work.env.items()}
    except TangramError as error:
        raise InvalidRequest(f"the variables of the engine: {error}") from error
    known = {"host": _listens_on(context.settings), "python": sys.executable}
    declared = GpuService(
        Engine.PROCESS,
        (Degree(len(chunk.units), 0),),
        command=filled(work.command, known),
        env=env,
    )
    folder = context.state_directory / FOLDER / process.fleet / process.worker
    engine = WorkerEngine(declared, chunk.units, folder, _GRACE_SECONDS, label)
    return EngineRun(order, engine, process.port, clear, sending)


def _listens_on(settings: Mapping[str, str]) -> str:
    """Return the interface of the node door, whose ``host:port`` an operator declares."""
    host = settings.get("door", "").rpartition(":")[0].strip("[]")
    return host or _LOOPBACK
