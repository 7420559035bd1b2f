"""Parts of a system with a fleet in processes of their own, for tests that kill them.

python -m tests.integration.runtime.fleet_processes leader URL PREFIX FLEET
python -m tests.integration.runtime.fleet_processes gateway URL PREFIX FOLDER PORT
python -m tests.integration.runtime.fleet_processes node URL PREFIX FOLDER NAME GPUS
python -m tests.integration.runtime.fleet_processes keeper URL PREFIX OPTIONS
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
import threading
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import msgspec
import uvicorn
from msgspec.structs import replace

from domain.fleets import FleetSpec
from domain.redis_keys import Keys
from managers.registry import load
from scheduler.runtime.fleets.keeper import FleetKeeper, KeeperOptions
from scheduler.runtime.node.worker import node_worker
from scheduler.runtime.redis.clients import connect_async
from tests.architecture.tree import ROOT
from tests.integration.runtime.rig import CONFIG, LoopThread, Rig


def free_port() -> int:
    """Return a port on which nothing listens."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


@asynccontextmanager
async def started(*arguments: str) -> AsyncIterator[Process]:
    """Run a module of Python; a test may kill it."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", *arguments, cwd=ROOT)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def engine(port: int, *options: str) -> AsyncIterator[Process]:
    """Run a modelled engine that needs about 10 ms for a token, and wait until it answers."""
    async with started(
        "managers.llm.fake", "--port", str(port), "--model", "8B", *options
    ) as found:
        await answers(f"http://127.0.0.1:{port}/health")
        yield found


@asynccontextmanager
async def leader(rig: Rig, fleet: FleetSpec) -> AsyncIterator[Process]:
    """Run a scheduler loop with fleet ``m``, and wait until it leads."""
    spec = msgspec.json.encode(fleet).decode()
    before = rig.redis.get(rig.keys.epoch)
    name = "tests.integration.runtime.fleet_processes"
    async with started(name, "leader", rig.url, rig.keys.prefix, spec) as found:
        async with asyncio.timeout(120):
            while rig.redis.get(rig.keys.epoch) == before or not rig.redis.exists(
                rig.keys.capacity
            ):
                await asyncio.sleep(0.02)
        yield found


@asynccontextmanager
async def gateway(rig: Rig) -> AsyncIterator[tuple[Process, str]]:
    """Run a web process, and wait until it answers; return it with its address."""
    port, name = free_port(), "tests.integration.runtime.fleet_processes"
    folder = str(rig.directory)
    async with started(name, "gateway", rig.url, rig.keys.prefix, folder, str(port)) as found:
        await answers(f"http://127.0.0.1:{port}/api/v1/livez")
        yield found, f"http://127.0.0.1:{port}"


async def answers(url: str) -> None:
    """Wait until a server answers."""
    async with httpx.AsyncClient(timeout=120) as client, asyncio.timeout(120):
        while True:
            try:
                await client.get(url)
            except httpx.TransportError:
                await asyncio.sleep(0.05)
            else:
                return


async def running_at(port: int) -> int:
    """Return the generations that a modelled engine runs now."""
    async with httpx.AsyncClient(timeout=120) as client:
        page = await client.get(f"http://127.0.0.1:{port}/metrics")
    return int(page.text.split()[1])


async def until_running(port: int, count: int) -> None:
    """Wait until an engine runs so many generations."""
    async with asyncio.timeout(120):
        while await running_at(port) != count:
            await asyncio.sleep(0.02)


def _lead(url: str, prefix: str, fleet: str) -> None:
    spec = msgspec.json.decode(fleet, type=FleetSpec)
    LoopThread(url, Keys(prefix), replace(CONFIG, fleets={"m": spec}))
    threading.Event().wait()


async def _serve(url: str, prefix: str, folder: str, port: str) -> None:
    rig = Rig(url, Keys(prefix), Path(folder))
    async with rig.gateway() as served:
        config = uvicorn.Config(served, port=int(port), lifespan="off", log_level="warning")
        await uvicorn.Server(config).serve()


async def _run_node(url: str, prefix: str, folder: str, name: str, gpus: str) -> None:
    client = connect_async(url)
    settings = {"gpus": gpus, "isolation": "process", "memory_bytes": str(2**30)}
    worker = node_worker(
        client, Keys(prefix), load(()), name=name, pool="default", state_directory=Path(folder),
        settings=settings,
    )  # fmt: skip
    running = asyncio.ensure_future(worker.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await running
    await client.aclose()


async def _keep(url: str, prefix: str, options: str) -> None:
    client = connect_async(url)
    times = msgspec.json.decode(options, type=KeeperOptions)
    await FleetKeeper(client, Keys(prefix), times).run()


if __name__ == "__main__":
    role, *rest = sys.argv[1:]
    if role == "leader":
        _lead(*rest)
    elif role == "node":
        asyncio.run(_run_node(*rest))
    elif role == "keeper":
        asyncio.run(_keep(*rest))
    else:
        asyncio.run(_serve(*rest))
