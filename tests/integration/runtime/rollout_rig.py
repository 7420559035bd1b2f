"""Rollouts in one process: a loop, gateways, and rollout workers that a test can kill; a real Redis and real logs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from msgspec.structs import replace

from domain.inventory import Config
from domain.redis_keys import Keys
from domain.rollouts import RolloutOutcome, RolloutResult, Stage
from rollout.llm.backend_monitor import INTERVAL_SECONDS
from rollout.ports import Assigned, Record, RolloutPort
from scheduler.runtime.batches.row_door import RowDoorOptions
from scheduler.runtime.body_store import BodyStore
from scheduler.runtime.gateway.context import GatewayBackend, GatewayContext
from scheduler.runtime.node.door.server import DoorOptions
from scheduler.runtime.redis.clients import connect_async
from scheduler.runtime.rollouts.assignments import Assignments, WorkerReplaced
from scheduler.runtime.rollouts.log_store import LogLimits, RolloutLogs
from scheduler.runtime.rollouts.role import RoleOptions, RunsRollouts, run_rollout_role
from scheduler.runtime.rollouts.worker_port import WorkerPort
from tangram_client._rollout_calls import RolloutInfo
from tangram_client.aio import AsyncClient
from tests.integration.runtime.rig import CONFIG, LoopThread, Rig

log = logging.getLogger(__name__)

#: Two rollouts in RUN at once, any number elsewhere.
ROLLOUTS = replace(
    CONFIG,
    resources={**CONFIG.resources, "stage:init": 8000, "stage:run": 2000, "stage:eval": 8000},
)

Work = Callable[[RolloutPort, Assigned], Any]


class ScriptedWorker:
    """Gives each assignment to a coroutine of the test, and cancels it when it is withdrawn."""

    #: A test reads the assignments itself.
    idle = False

    def __init__(self, port: RolloutPort, work: Work) -> None:
        self._port, self._work = port, work
        self.port = cast("WorkerPort", port)
        self.running: dict[str, asyncio.Task[None]] = {}
        self.withdrawn: list[Any] = []
        self.failed: list[BaseException] = []

    async def run(self) -> None:
        """Run what is assigned until cancelled."""
        if self.idle:
            await asyncio.Event().wait()
        try:
            async for change in self._port.assignments():
                if isinstance(change, Assigned):
                    task = asyncio.ensure_future(self._work(self._port, change))
                    task.add_done_callback(self._ended)
                    self.running[change.rollout.id] = task
                else:
                    self.withdrawn.append(change)
                    if (running := self.running.pop(change.rollout_id, None)) is not None:
                        running.cancel()
        finally:
            for task in self.running.values():
                task.cancel()
            await asyncio.gather(*self.running.values(), return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failed.append(error)
            log.error("the work of a test failed", exc_info=error)


@dataclass
class RunningWorker:
    """A worker of the rig."""

    task: asyncio.Task[None]
    context: GatewayContext
    worker: asyncio.Future[ScriptedWorker]


@dataclass
class RolloutRig:
    """A running system with rollout workers."""

    rig: Rig
    folder: Path
    limits: LogLimits = field(default_factory=LogLimits)
    workers: list[RunningWorker] = field(default_factory=list)
    #: Between two checks of the health of backends.
    check_seconds: float = INTERVAL_SECONDS

    @property
    def logs(self) -> RolloutLogs:
        """The logs, as a new process sees them."""
        return RolloutLogs(self.folder / "rollouts", self.limits)

    async def start_worker(
        self,
        work: Work,
        name: str = "w1",
        slots: int = 8,
        handlers: tuple[str, ...] = ("noop",),
        *,
        idle: bool = False,
    ) -> ScriptedWorker:
        """Start a worker, and wait until the loop counts it as live."""
        made: asyncio.Future[ScriptedWorker] = asyncio.get_running_loop().create_future()

        def make(port: RolloutPort, _: int) -> RunsRollouts:
            worker = ScriptedWorker(port, work)
            worker.idle = idle
            made.set_result(worker)
            return worker

        rows = self.rig.rows
        context = GatewayContext(
            connect_async(self.rig.url),
            self.rig.keys,
            GatewayBackend(
                rows.authenticate,
                rows.action_view,
                rows.completions,
                rows.checks,
                rows.facts,
                rows.task_exists,
            ),
            end_process=lambda: None,
            bodies=BodyStore(self.folder),
        )
        options = RoleOptions(
            name, slots, handlers,
            check_seconds=self.check_seconds, door=DoorOptions(self.folder / f"door-{name}"),
            rows=RowDoorOptions(),
        )  # fmt: skip
        task = asyncio.create_task(run_rollout_role(context, self.logs, options, make))
        self.workers.append(RunningWorker(task, context, made))
        either: set[asyncio.Future[Any]] = {task, made}
        await asyncio.wait(either, timeout=120, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        worker = made.result()
        await asyncio.wait_for(self.assignments(worker).joined.wait(), 120)
        return worker

    async def start_port(self) -> WorkerPort:
        """Start a worker that takes nothing by itself, and return its port."""
        worker = await self.start_worker(noop, idle=True)
        return worker.port

    def assignments(self, worker: ScriptedWorker) -> Assignments:
        """Return what a worker knows of its assignments."""
        return worker.port._assignments

    async def kill_worker(self, number: int = 0) -> None:
        """End a worker as ``kill -9`` does: it says nothing of its end, and its sign of life expires."""
        running = self.workers[number]
        assignments = self.assignments(running.worker.result())
        if not assignments.failed.done():
            assignments.failed.set_exception(WorkerReplaced("killed"))
        await asyncio.wait({running.task}, timeout=120)
        name = assignments.worker
        self.rig.redis.delete(self.rig.keys.rollout_worker_alive(name))

    async def stop_worker(self, number: int = 0) -> None:
        """End a worker in order."""
        running = self.workers[number]
        running.task.cancel()
        await asyncio.wait({running.task}, timeout=120)

    async def end(self) -> None:
        """End all workers."""
        for running in self.workers:
            running.task.cancel()
        await asyncio.gather(*(each.task for each in self.workers), return_exceptions=True)

    @asynccontextmanager
    async def client(self, token: str = "trainer") -> AsyncIterator[AsyncClient]:
        """Return the SDK's client of a web process of its own."""
        async with self.rig.served(token) as client:
            yield client


@asynccontextmanager
async def rollout_rig(
    url: str, keys: Keys, directory: Path, config: Config = ROLLOUTS
) -> AsyncIterator[RolloutRig]:
    """A leader and no worker yet."""
    rig = Rig(url, keys, directory)
    rig.bodies_folder = directory / "bodies"
    rig.loop = LoopThread(url, keys, config)
    found = RolloutRig(rig, directory / "bodies")
    rig.rollout_logs = found.logs
    try:
        yield found
    finally:
        await found.end()
        await rig.end()


async def noop(port: RolloutPort, given: Assigned) -> None:
    """Run a rollout that does nothing: three stages with their leases, and a result of reward 1."""
    rollout, attempt = given.rollout, given.attempt
    for stage in Stage:
        lease = await port.lease(rollout, attempt, stage, 0)
        await port.release(lease)
    number = len(await port.read(rollout))
    await port.append(rollout, attempt, number, Record("result", {"detail": {"by": "noop"}}))
    await port.finished(rollout, attempt, RolloutResult(RolloutOutcome.COMPLETED, 1.0))


async def finished(client: AsyncClient, rollout: str) -> RolloutInfo:
    """Return a rollout once it is finished."""
    async with asyncio.timeout(120):
        return await client.rollouts.wait(rollout)
