"""The driver for containers: what a node worker talks to.

An order becomes a `Run`, a task of its own that nothing cancels: when `run` is cancelled, the action
is ended and its end is awaited. Two tasks look after things: one compares cores with what they
should be every second, one compares containers with the engine every half minute.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence

from domain.action import Kind, Outcome
from domain.allocation import Allocation
from domain.errors import NotFound, TangramError, Unavailable
from domain.ids import ActionId, TrajectoryKey
from domain.ports import DriverContext, Leftover, RunOrder, RunReport
from managers.common.order_runs import CLOSED, SHUTTING_DOWN, Runs
from managers.common.start_log import MarkLog, MarkThread, leftover
from managers.cpu.containers import reconcile
from managers.cpu.containers.cgroup_backend import DirectWay, repair
from managers.cpu.containers.engine import Engine
from managers.cpu.containers.engine_backend import ApiWay
from managers.cpu.containers.environment import Environment
from managers.cpu.containers.environments import Environments
from managers.cpu.containers.exec_backends import Way
from managers.cpu.containers.run import Run
from managers.cpu.containers.settings import Settings
from managers.cpu.containers.survey import survey
from managers.cpu.containers.tools import Tools
from managers.cpu.probe import usable_cores
from managers.cpu.process.files import read_file, write_file
from managers.cpu.process.locks import take_lock
from managers.cpu.topology import physical_cores, without_reserved

#: A look costs some 0.1 ms, and there may be hundreds of environments.
_LOOKS_AT_ONCE = 16

_log = logging.getLogger(__name__)


class ContainerDriver:
    """Runs commands in containers of a Docker Engine."""

    kinds = frozenset({Kind.EXEC})

    def __init__(self, context: DriverContext) -> None:
        self._settings = Settings.parse(context.settings)
        self._directory = context.state_directory
        reserved = context.settings.get("reserved_cpus", "")
        granted = without_reserved(usable_cores(), reserved)
        self._cores = physical_cores(granted)
        #: Where idle containers are: beside what is granted, where something was reserved.
        self._parking = frozenset(usable_cores()) - frozenset(granted) or frozenset({min(granted)})
        self._engine = Engine(self._settings.host, self._settings.engine_seconds)
        self._lock = -1
        self._tools: Tools | None = None
        self._isolation = "docker"
        self._runs: Runs[Run] = Runs(self._take_back)
        self._chores: list[asyncio.Task[None]] = []
        #: How often cores were found changed by somebody else.
        self.repairs = 0

    @property
    def isolation(self) -> str:
        """How commands are isolated, known once it is open: ``docker-direct`` or ``docker-api``."""
        return self._isolation

    async def open(self) -> list[Leftover]:
        """End what a dead predecessor left running; return what it had started. Called once."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = take_lock(self._directory)
        try:
            await self._engine.open()
            return await self._begin()
        except BaseException:
            await self.close()
            raise

    async def _begin(self) -> list[Leftover]:
        site = await survey(self._engine, self._settings, self._directory, self._parking)
        way: Way = ApiWay(self._engine) if site.trees is None else DirectWay(self._settings)
        self._isolation = f"docker-{way.name}"
        environments = Environments(site)
        marks = MarkLog(self._directory / "marks.log")
        marked = await asyncio.to_thread(marks.open)
        found = await reconcile.take_over(site, environments, way)
        self._tools = Tools(
            site, environments, way, MarkThread(marks, "tangram-marker"), self._cores
        )
        environments.open()
        self._chores = [
            asyncio.create_task(self._repeat(self._settings.sweep_seconds, self._sweep)),
            asyncio.create_task(self._repeat(self._settings.reconcile_seconds, self.look_after)),
        ]
        return [leftover(mark, ended=mark in found.ended) for mark in marked]

    async def run(self, order: RunOrder, started: Callable[[], None]) -> RunReport:
        """Run one action to its end. An order that runs already is not run twice."""
        tools = self._tools
        if tools is None:
            return CLOSED
        return await self._runs.run(order, lambda: Run(order, started, tools))

    def stop(self, action_id: ActionId, outcome: Outcome, reason: str) -> None:
        """End a run; its report carries ``outcome`` unless it ended by itself before."""
        self._runs.stop(action_id, outcome, reason)

    def resize(self, action_id: ActionId, attempt: int, allocation: Allocation) -> None:
        """Let a run go on with other cores; an attempt that does not run is ignored."""
        self._runs.resize(action_id, attempt, allocation)

    def forget(self, marks: Sequence[str]) -> None:
        """These attempts will not be ordered again: their marks go, once they have ended."""
        self._runs.forget(marks)

    async def remove_environment(self, trajectory: TrajectoryKey) -> None:
        """End what runs in it and delete it. An unknown trajectory is not an error."""
        await self._runs.end_of(trajectory, Outcome.CANCELLED, "its environment is removed")
        await self._open_tools().environments.remove(trajectory)

    async def put_file(self, trajectory: TrajectoryKey, path: str, content: bytes) -> None:
        """Write a file below the workspace. Raises InvalidRequest for a path that leaves it."""
        workspace = self._open_tools().site.workspaces.ensure(trajectory)
        await asyncio.to_thread(write_file, workspace, path, content)

    async def get_file(self, trajectory: TrajectoryKey, path: str, limit_bytes: int) -> bytes:
        """Read a file below the workspace. Raises InvalidRequest (leaves it, too large), NotFound."""
        workspace = self._open_tools().site.workspaces.of(trajectory)
        if not workspace.exists():
            raise NotFound(f"{trajectory} has no environment on this node")
        return await asyncio.to_thread(read_file, workspace, path, limit_bytes)

    async def close(self) -> None:
        """End everything this driver runs; the containers of trajectories wait for a successor."""
        tools, self._tools = self._tools, None
        for chore in self._chores:
            chore.cancel()
        if self._chores:
            await asyncio.wait(self._chores)
        await self._runs.end_all(SHUTTING_DOWN)
        if tools is not None:
            await tools.environments.close()
            if tools.site.trees is not None:
                tools.site.trees.remove_parent(tools.site.parent)
            await asyncio.to_thread(tools.marks.close)
        await self._engine.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def environments(self) -> list[Environment]:
        """Return the environments there are; for whoever looks at this node."""
        return self._open_tools().environments.all()

    @property
    def owner(self) -> str:
        """The name that our containers carry as label."""
        return self._open_tools().site.owner

    def _open_tools(self) -> Tools:
        if self._tools is None:
            raise Unavailable("the driver is closed")
        return self._tools

    def _take_back(self, marks: Sequence[str]) -> None:
        if self._tools is not None:
            self._tools.marks.remove(marks)

    async def _repeat(self, seconds: float, work: Callable[[], object]) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                result = work()
                if asyncio.iscoroutine(result):
                    await result
            except (OSError, TangramError) as error:
                _log.warning("looking after the containers failed, and goes on: %s", error)

    async def _sweep(self) -> None:
        """Restore cores that somebody else changed; between a few looks others have their turn."""
        for number, environment in enumerate(self._open_tools().environments.all()):
            if number % _LOOKS_AT_ONCE == _LOOKS_AT_ONCE - 1:
                await asyncio.sleep(0)
            if environment.group is not None and not environment.lost:
                try:
                    self.repairs += repair(environment)
                except FileNotFoundError:  # its container ended; the comparison will tell
                    continue

    async def look_after(self) -> None:
        """Compare containers with the engine, and remove what is due. Raises EngineAway."""
        tools = self._open_tools()
        due = await reconcile.look_after(tools.site, tools.environments)
        idle = self._settings.idle_seconds
        now = time.monotonic()
        for environment in tools.environments.all():
            at_rest = (
                environment.trajectory
                and environment.pid
                and not environment.lost
                and not environment.lock.locked()
            )
            if idle and at_rest and environment.used_at + idle < now and environment not in due:
                due.append(environment)
        for environment in due:
            await self._retire(environment)

    async def _retire(self, environment: Environment) -> None:
        """Remove a container whose time is over, and remember that its trajectory had one."""
        await self._runs.end_of(
            environment.trajectory, Outcome.INFRA_FAILED, "its environment has expired"
        )
        reconcile.lose(environment, "it was idle for too long, or passed its expiry")
        await self._engine.remove(environment.container)
