"""A system with declared GPUs whose services are in memory.

Engines are those of `managers.gpu.engines.fake`; one local server answers for all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx

from domain.allocation import Home
from domain.inventory import Config, PoolConfig, ProjectConfig, ResourceInventory
from domain.limits import Share
from domain.ports import DriverContext
from domain.services import Degree, Engine, GpuService, ServiceState
from managers.gpu.driver import GpuDriver
from managers.gpu.engines.fake import FakeEngineServer, FakeMemory
from scheduler.runtime.node.worker import NodeWorker
from tests.api_server import LocalApi
from tests.integration.runtime.rig import LoopThread, Rig

GIB = 2**30
GPU_BYTES = 80 * GIB


class AnsweringServer(FakeEngineServer):
    """A service in memory whose requests a local server answers."""

    port: int
    #: Opened when restores may go on; set unless a test closes it.
    gate: asyncio.Event

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}" if self.alive else ""

    async def restore(self) -> None:
        await self.gate.wait()
        await super().restore()


class GpuRig(Rig):
    """A system with one node of two declared GPUs, and services that need most of one."""

    api: LocalApi
    shares: dict[str, dict[str, Share]] = {}
    engine = Engine.PROCESS
    eager = False
    paths: tuple[str, ...] = ("/v1",)
    idle_timeout_seconds = 60.0
    #: Host memory for services, of which those that keep a copy take as much as of GPUs.
    host_bytes: int | None = None

    def prepare(self, *names: str, gpus: int = 2) -> None:
        services = {
            name: GpuService(
                self.engine,
                (Degree(1, 50 * GIB),),
                command=("serve", "{port}"),
                paths=self.paths,
                idle_timeout_seconds=self.idle_timeout_seconds,
                source="a/model" if self.eager else "",
                eager=self.eager,
            )
            for name in names
        }
        services["huge"] = GpuService(
            Engine.PROCESS, (Degree(1, 90 * GIB),), command=("serve", "{port}")
        )
        services["wide"] = GpuService(
            Engine.PROCESS, (Degree(4, 10 * GIB),), command=("serve", "{port}")
        )
        self.config = Config(
            revision=1,
            projects={name: ProjectConfig(name) for name in ("default", "other")},
            pools={"default": PoolConfig("default", shares=self.shares)},
            services=services,
        )
        self.memory = FakeMemory()
        self.servers: dict[Home, AnsweringServer] = {}
        self.trouble: dict[str, str] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        units = tuple(range(gpus))
        self.gpus = ResourceInventory(
            gpus * 1000, (units,), memory_bytes=GPU_BYTES, host_memory_bytes=self.host_bytes
        )

    def start_loop(self) -> None:
        self.loop = LoopThread(self.url, self.keys, self.config)

    async def start_gpu_node(self) -> NodeWorker:
        have = {"gpu": self.gpus}
        context = DriverContext("n1", self.directory / "gpu", have, {}, self.response_streams)
        driver = GpuDriver(
            context,
            make_server=self._make,
            free_bytes=lambda unit: GPU_BYTES - self.memory.used.get(unit, 0),
            patience_seconds=0.2,
        )
        self.gpu_driver = driver
        self.others = [driver]
        return await self.start_node(gpu=self.gpus)

    def is_whole(self) -> bool:
        """Say whether all memory that is measured is that of services which are there.

        GPUs that are out of use, as their memory did not get free, do not count.
        """
        runner, declared = self.gpu_driver.runner, self.config.services
        for unit in self.healthy():
            there = [declared[name] for name, units in runner.store.in_memory() if unit in units]
            needed = sum(service.memory_bytes(1) for service in there)
            if self.memory.used.get(unit, 0) != needed:
                return False
        warm = [each for each in runner.store.instances() if each.state is not ServiceState.COLD]
        host = sum(declared[each.service].host_bytes(len(each.units)) for each in warm)
        return runner.host.used_bytes == host

    def healthy(self) -> set[int]:
        """Return the GPUs that the books hand out."""
        assert self.loop is not None
        (node,) = self.loop.loop.term.machine.state.supply.nodes.values()
        have = node.inventory.resources["gpu"]
        return {unit for group in have.groups for unit in group} - set(have.unhealthy)

    def _make(self, service: GpuService, home: Home) -> AnsweringServer:
        need = service.memory_bytes(len(home.units))
        there = f"{home.service}@{home.units[0]}"
        trouble = self.trouble.get(there, self.trouble.get(home.service, ""))
        server = AnsweringServer(self.memory, home.units, need, trouble)
        server.port, server.gate = self.api.port, self.gate
        self.servers[home] = server
        return server


async def until(said: Callable[[], bool]) -> None:
    """Wait for a fact, two minutes at most."""
    async with asyncio.timeout(120):
        while not said():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def running(rig: GpuRig, *names: str, gpus: int = 2) -> AsyncIterator[httpx.AsyncClient]:
    """Start everything; return a trainer's client. The pool is whole when it is over."""
    rig.prepare(*names, gpus=gpus)
    rig.start_loop()
    await rig.start_gpu_node()
    async with rig.client() as client:
        yield client
    assert rig.loop is not None
    for ledger in rig.loop.loop.term.machine.state.supply.ledgers.values():
        assert (ledger.free, ledger.holders()) == (ledger.capacity, {})
    assert not any(instance.locks for instance in rig.gpu_driver.runner.store.instances())
    await until(rig.is_whole)


def a_call(service: str, **fields: Any) -> dict[str, Any]:
    call = {"target": f"service:{service}", "path": "/v1/score", "json": {"text": service}}
    return {"task": "t", "kind": "call", "call": call, **fields}


async def finished(client: httpx.AsyncClient, payload: dict[str, Any]) -> dict[str, Any]:
    answered = await client.post("/actions", params={"wait": 60}, json=payload)
    assert answered.status_code == 200, answered.text
    view: dict[str, Any] = answered.json()
    return view
