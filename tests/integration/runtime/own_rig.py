"""A fleet with workers of our own: a leader, nodes in processes of their own with declared GPUs, keepers, and modelled engines that they start."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec
import psutil
from msgspec.structs import replace

from contract.fleet_reports import OwnWorkerReport
from domain.action import ActionState
from domain.decisions import Finish
from domain.events import ActionSubmitted, ConfigApplied
from domain.fleets import FleetEngine, FleetSpec, FleetWorker
from domain.redis_keys import Keys
from scheduler.runtime.fleets.keeper import KeeperOptions
from scheduler.runtime.fleets.worker_checks import CheckPauses
from scheduler.runtime.fleets.worker_steps import StepTimes
from tests.integration.runtime.fleet_processes import started
from tests.integration.runtime.keeper_rig import KeeperRig
from tests.integration.runtime.rig import CONFIG, LoopThread

SOON = KeeperOptions(
    CheckPauses(0.05, 0.02, 0.2),
    StepTimes(0.05, 600.0, 0.05, 0.2, 60.0, 0.1),
    lease_seconds=3.0,
    stand_by_seconds=0.05,
)
ENGINE = (
    "{python}", "-m", "managers.llm.fake", "--host", "{host}", "--port", "{port}", "--model", "8B",
    "--degree", "{gpus}", "--slots", "{slots}", "--speed", "100",
)  # fmt: skip


class OwnRig(KeeperRig):
    """A leader whose fleet ``m`` has workers of its own."""

    def __init__(self, url: str, keys: Keys, directory: Path, stack: AsyncExitStack) -> None:
        super().__init__(url, keys, directory)
        self._stack = stack
        self._revision = 1
        self._config = CONFIG
        self.nodes: dict[str, Process] = {}

    def declare(self, gpus: int, **fleet: Any) -> None:
        """Declare the fleet, with workers of one GPU; 0: it is deleted."""
        members: dict[str, Any] = {
            "engine": FleetEngine.VLLM,
            "degrees": (1,),
            "command": ENGINE,
            "slots": 4,
        }
        spec = FleetSpec(gpus=gpus, **members | fleet) if gpus else None
        config = replace(
            CONFIG,
            revision=self._revision,
            fleets={} if spec is None else {"m": spec},
            node_grace_seconds=1.0,
            node_dead_seconds=2.0,
        )
        self._revision += 1
        self._config = config
        if self.loop is None:
            self.loop = LoopThread(self.url, self.keys, config)
        else:
            self.tell(ConfigApplied(config=config))

    async def restart_leader(self) -> None:
        """Let another leader take over: it knows what the journal has."""
        assert self.loop is not None
        await asyncio.to_thread(self.loop.stop)
        self.loop = LoopThread(self.url, self.keys, self._config)

    async def start_gpus(self, name: str = "n1", gpus: int = 2) -> Process:
        """Start a node with declared GPUs in a process of its own, which ``kill`` ends without a farewell."""
        module, folder = "tests.integration.runtime.fleet_processes", self.directory / name
        words = ("node", self.url, self.keys.prefix, str(folder), name, str(gpus))
        self.nodes[name] = await self._stack.enter_async_context(started(module, *words))
        return self.nodes[name]

    async def start_keeper(self) -> Process:
        """Start a keeper in a process of its own."""
        module, options = "tests.integration.runtime.fleet_processes", msgspec.json.encode(SOON)
        words = ("keeper", self.url, self.keys.prefix, options.decode())
        return await self._stack.enter_async_context(started(module, *words))

    def own(self) -> dict[str, OwnWorkerReport]:
        """Return what the keeper reports of workers of our own."""
        return {each.name: each for each in self.report().own}

    async def until_serving(self, count: int) -> dict[str, OwnWorkerReport]:
        """Wait until so many workers of our own serve, and no other is left."""
        await self.until_reported(
            lambda found: [each.state for each in found.own] == ["serves"] * count
        )
        return self.own()

    def engine_of(self, worker: FleetWorker) -> psutil.Process:
        """Return the process of the engine that listens at the address of a worker."""
        port = str(urlsplit(worker.url).port)
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if "managers.llm.fake" in words and port in words:
                return process
        raise AssertionError(f"no engine listens at {worker.url}")

    async def until_gone(self, process: psutil.Process) -> None:
        """Wait until a process has ended."""
        async with asyncio.timeout(120):
            while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                await asyncio.sleep(0.02)

    def submitted(self) -> list[ActionSubmitted]:
        """Return the actions that were submitted to run engines, in order."""
        submitted = [each for each in self.journalled() if isinstance(each, ActionSubmitted)]
        return [each for each in submitted if each.action.engine is not None]

    def why_ended(self, action: str) -> str | None:
        """Return why an action ended, as the journal has it."""
        ends = [each for each in self.journalled() if isinstance(each, Finish)]
        return next(each.detail for each in ends if each.action_id == action)

    async def until_undeclared(self) -> None:
        """Wait until the leader has stored that there is no fleet."""
        async with asyncio.timeout(120):
            while b'"fleets":{}' not in cast("bytes", self.redis.get(self.keys.capacity)):
                await asyncio.sleep(0.02)

    def gpus_held(self) -> list[int]:
        """Return the GPUs that actions hold, in order."""
        assert self.loop is not None
        state = self.loop.loop.term.machine.state
        return sorted(
            unit
            for live in list(state.actions.values())
            if live.state in (ActionState.GRANTED, ActionState.RUNNING)
            for each in live.allocations
            for unit in each.units
        )

    async def until_held(self, gpus: list[int]) -> None:
        """Wait until actions hold these GPUs and no others."""
        async with asyncio.timeout(120):
            while self.gpus_held() != gpus:
                await asyncio.sleep(0.02)


@asynccontextmanager
async def own_rig(url: str, keys: Keys, directory: Path) -> AsyncIterator[OwnRig]:
    """Return a rig, and end its parts afterwards: nodes by a signal, as an operator does."""
    async with AsyncExitStack() as stack:
        rig = OwnRig(url, keys, directory, stack)
        try:
            yield rig
        finally:
            for node in rig.nodes.values():
                if node.returncode is None:
                    node.terminate()
            await asyncio.gather(*(node.wait() for node in rig.nodes.values()))
            await rig.end()
