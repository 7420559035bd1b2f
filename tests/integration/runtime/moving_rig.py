"""A leader and several node workers with real process drivers, in one process."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import httpx
from msgspec.structs import replace

from domain.codec import encode
from domain.events import ConfigApplied
from domain.inventory import PoolConfig, ResourceInventory
from domain.ports import DriverContext
from domain.redis_keys import Keys
from managers.cpu.process import ProcessDriver
from scheduler.core.state.live import LiveTrajectory
from scheduler.runtime.node.door.areas import door_routes
from scheduler.runtime.node.door.server import DoorOptions, NodeDoor
from scheduler.runtime.node.worker import NodeOptions, NodeWorker
from scheduler.runtime.redis.clients import connect_async
from scheduler.runtime.redis.door_addresses import DoorAddresses
from tests.integration.runtime.rig import CONFIG, LoopThread, Rig

POOL = PoolConfig("default", move_environments=True, rebalance_environments=True)
MOVING = replace(CONFIG, pools={"default": POOL})


@dataclass
class RunningNode:
    """A node worker, its driver and its task."""

    worker: NodeWorker
    driver: ProcessDriver
    task: asyncio.Task[None]
    client: object


class MovingRig(Rig):
    """A system of several nodes, whose nodes are started, stopped and drained by a test."""

    def __init__(self, url: str, keys: Keys, directory: Path) -> None:
        super().__init__(url, keys, directory)
        self.nodes: dict[str, RunningNode] = {}
        self.isolation = "bwrap"
        self.revision = CONFIG.revision
        self.loop = LoopThread(url, keys, MOVING)

    async def start(self, name: str, memory_bytes: int = 2**30) -> RunningNode:
        """Start a node worker, perhaps again on the same state, and wait until it has joined."""
        folder = self.directory / name
        given = {"isolation": self.isolation, "grace_seconds": "0.1"}
        driver = ProcessDriver(DriverContext(name, folder / "cpu", {}, given))
        client = connect_async(self.url)
        have = {"cpu": ResourceInventory(4000), "memory": ResourceInventory(memory_bytes)}
        options = NodeOptions(name, "default", folder, have)
        door = NodeDoor(
            DoorAddresses(client, self.keys), name, DoorOptions(folder / "door"),
            door_routes([driver], None),
        )  # fmt: skip
        worker = NodeWorker(client, self.keys, options, [driver], door=door)
        task = asyncio.create_task(worker.run())
        node = self.nodes[name] = RunningNode(worker, driver, task, client)
        await asyncio.wait_for(worker.joined.wait(), 120)
        await self.until(lambda: name in self.state.supply.nodes)
        return node

    async def stop(self, name: str) -> None:
        """End a node worker; its environments go on for the next one."""
        node = self.nodes.pop(name)
        node.task.cancel()
        await asyncio.wait({node.task})
        left = list(node.worker._background._tasks)  # they end with the process elsewhere
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await node.client.aclose()  # type: ignore[attr-defined]

    async def end(self) -> None:
        """End its parts, in order."""
        for name in list(self.nodes):
            await self.stop(name)
        assert self.loop is not None
        self.loop.stop()
        self.response_streams.close()
        self.close()

    @property
    def state(self):
        """The state of the scheduler; read only, in between its passes."""
        assert self.loop is not None
        return self.loop.loop.term.machine.state

    def trajectory(self, name: str) -> LiveTrajectory:
        """Return an open trajectory."""
        return self.state.trajectories[f"default/{name}"]

    async def until(self, holds, seconds: float = 60.0) -> None:
        """Wait until something holds."""
        async with asyncio.timeout(seconds):
            while not holds():
                await asyncio.sleep(0.005)

    def drain(self, *names: str) -> None:
        """Let nodes finish their trajectories."""
        self.revision += 1
        config = replace(
            MOVING, revision=self.revision, drained_nodes=frozenset(names),
            finishing_nodes=frozenset(names),
        )  # fmt: skip
        self.redis.set(self.keys.config, encode(config))
        self.redis.xadd(self.keys.inbox, {"0": encode(ConfigApplied(config=config))})

    async def moved(self, name: str, node: str) -> None:
        """Wait until a trajectory lives on ``node``, and its former node has removed its environment."""
        await self.until(lambda: self.trajectory(name).node == node)
        await self.until(lambda: not self.trajectory(name).copies)


async def ran(client: httpx.AsyncClient, trajectory: str, command: str, **more) -> dict:
    """Run a command to its end, and return the view of its action."""
    body = {
        "task": "t", "kind": "exec", "cost": {"cpu": 1}, "trajectory": trajectory,
        "exec": {"command": ["sh", "-c", command]}, **more,
    }  # fmt: skip
    answer = await client.post("/actions?wait=60", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()
