"""Modelled engines behind real sockets, a scheduler loop that declares them as a fleet, and keepers of it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from msgspec.structs import replace

from contract.fleet_reports import KeeperReport
from domain.codec import encode
from domain.events import Event
from domain.fleets import FleetEngine, FleetSpec, FleetWorker, WorkerSpec
from domain.redis_keys import Keys
from managers.llm.fake.engine_model import EngineModel
from managers.llm.fake.engine_server import Behaviour, EngineServer
from managers.llm.fake.engine_spec import MODELLED
from managers.llm.fake.paced_engine import PacedEngine
from scheduler.runtime.capacity import CapacityView
from scheduler.runtime.fleets.keeper import FleetKeeper, KeeperOptions
from scheduler.runtime.fleets.worker_checks import CheckPauses
from scheduler.runtime.node.door.server import EmbeddedServer
from scheduler.runtime.redis.clients import connect_async
from scheduler.runtime.redis.journal import START, Journal
from tests.integration.runtime.rig import CONFIG, LoopThread, Rig

SOON = KeeperOptions(CheckPauses(0.05, 0.02, 0.2), lease_seconds=3.0, stand_by_seconds=0.05)


class ServedApplication:
    """An ASGI application on a port of its own, which can be ended and started again."""

    def __init__(self, application: Any) -> None:
        self.application = application
        self.port = 0
        self._server: EmbeddedServer | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", self.port))
        self.port = listening.getsockname()[1]
        config = uvicorn.Config(self.application, port=0, lifespan="off", log_level="warning")
        self._server = EmbeddedServer(config)
        self._serving = asyncio.create_task(self._server.serve([listening]))

    async def stop(self) -> None:
        """End it as a process that dies: its connections are closed."""
        if self._serving is not None and self._server is not None:
            self._server.force_exit = True
            self._server.end()
            await self._serving
            self._serving = None
            # It waits for no request, and leaves connections of unanswered ones open.
            for connection in self._server.server_state.connections:
                if connection.transport is not None:
                    connection.transport.abort()


def an_engine(dialect: str = "vllm", **behaviour: Any) -> EngineServer:
    """Return a modelled engine that takes hardly any time."""
    engine = PacedEngine(EngineModel(MODELLED["8B"], 1, 8), 1000.0)
    return EngineServer(engine, Behaviour(dialect, **behaviour))


class KeeperRig(Rig):
    """A leader whose configuration has the fleet ``m``."""

    def __init__(self, url: str, keys: Keys, directory: Path) -> None:
        super().__init__(url, keys, directory)
        self.applications: list[ServedApplication] = []
        self._keepers: list[asyncio.Task[None]] = []

    async def serve(self, *applications: Any) -> list[ServedApplication]:
        """Serve applications on ports of their own."""
        started = [ServedApplication(each) for each in applications]
        for each in started:
            await each.start()
        self.applications += started
        return started

    def lead(
        self,
        urls: Sequence[str],
        engine: FleetEngine = FleetEngine.VLLM,
        slots: int = 8,
        degrees: Sequence[int] = (),
        **fleet: Any,
    ) -> None:
        """Start the loop with workers ``w1``, ``w2``, … at these addresses; of these degrees, else 1."""
        workers = tuple(
            WorkerSpec(f"w{n}", url, slots, degree)
            for n, (url, degree) in enumerate(zip(urls, degrees or [1] * len(urls), strict=True), 1)
        )
        spec = FleetSpec(engine, workers=workers, **fleet)
        self.loop = LoopThread(self.url, self.keys, replace(CONFIG, fleets={"m": spec}))

    def keep(self, options: KeeperOptions = SOON) -> tuple[FleetKeeper, asyncio.Task[None]]:
        """Start a keeper."""
        client = connect_async(self.url)
        keeper = FleetKeeper(client, self.keys, options)

        async def keep() -> None:
            try:
                await keeper.run()
            finally:
                await client.aclose()

        self._keepers.append(asyncio.create_task(keep()))
        return keeper, self._keepers[-1]

    def tell(self, *events: Event) -> None:
        """Append events to the inbox."""
        for event in events:
            self.redis.xadd(self.keys.inbox, {"0": encode(event)})

    def workers(self) -> dict[str, FleetWorker]:
        """Return the workers as the leader stored them."""
        stored = self.redis.get(self.keys.capacity)
        view = msgspec.json.decode(stored or b"{}", type=CapacityView)
        return {each.name: each for each in view.fleets["m"].workers}

    async def until(
        self, holds: Callable[[dict[str, FleetWorker]], bool]
    ) -> dict[str, FleetWorker]:
        """Wait until the workers are as stated."""
        async with asyncio.timeout(120):
            while not self.redis.exists(self.keys.capacity) or not holds(self.workers()):
                await asyncio.sleep(0.02)
        return self.workers()

    async def until_journalled(self, holds: Callable[[list[Any]], Any]) -> Any:
        """Wait until the events and decisions of the journal are as stated; return what ``holds`` returns."""
        async with asyncio.timeout(120):
            while not (found := holds(self.journalled())):
                await asyncio.sleep(0.02)
        return found

    def journalled(self) -> list[Any]:
        """Return all events and decisions of the journal, in their order."""
        journal = Journal(self.redis, self.keys)
        try:
            entries = [entry for _, entry in journal.after(START)]
        finally:
            journal.close()
        return [each for entry in entries for each in (*entry.events, *entry.decisions)]

    def report(self) -> KeeperReport:
        """Return what the keeper stored of the fleet."""
        stored = self.redis.hget(self.keys.fleet_reports, "m")
        return msgspec.json.decode(stored, type=KeeperReport) if stored else KeeperReport()

    async def until_reported(self, holds: Callable[[KeeperReport], Any]) -> KeeperReport:
        """Wait until the keeper's report is as stated."""
        async with asyncio.timeout(120):
            while not holds(found := self.report()):
                await asyncio.sleep(0.02)
        return found

    async def end_keepers(self) -> None:
        """Cancel the keepers. While workers die, httpx leaves connections open that it was closing when it was cancelled."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)

    async def end(self) -> None:
        await self.end_keepers()
        for each in self.applications:
            await each.stop()
        await super().end()


@asynccontextmanager
async def keeper_rig(url: str, keys: Keys, directory: Path) -> AsyncIterator[KeeperRig]:
    """Return a rig, and end its parts afterwards."""
    rig = KeeperRig(url, keys, directory)
    try:
        yield rig
    finally:
        await rig.end()
