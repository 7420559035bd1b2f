"""The driver for containers.

An order becomes a `ContainerRun` in a task of its own that is never cancelled: when `run` is cancelled,
the action is stopped and its end is awaited. Two periodic tasks repair changed cores every second, and
reconcile containers with the engine every half minute.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from domain.action import EnvironmentSpec, Kind, Outcome
from domain.allocation import Allocation
from domain.confinement import NETWORK_EGRESS
from domain.decisions import ForkEnvironment
from domain.errors import TangramError, Unavailable
from domain.forks import ForkReport
from domain.ids import ActionId, TrajectoryKey
from domain.ports import DriverContext, EnvironmentDisk, Leftover, RunOrder, RunReport
from domain.ports.images import Warming
from domain.ports.processes import EnvironmentFacts
from domain.ports.sessions import SessionServing
from domain.protection import Protection
from managers.common.affinity import usable_cores
from managers.common.order_runs import CLOSED, SHUTTING_DOWN, OrderRuns
from managers.common.removals import Removals
from managers.common.start_log import StartLog, StartLogWriter, leftover
from managers.cpu.containers import reconcile
from managers.cpu.containers.cgroup_backend import CgroupBackend, repair
from managers.cpu.containers.container_config import protection
from managers.cpu.containers.docker_engine import DockerEngine
from managers.cpu.containers.engine_backend import EngineBackend
from managers.cpu.containers.environment import CpuShare, Environment
from managers.cpu.containers.environment_store import EnvironmentStore, refuse_snapshot
from managers.cpu.containers.exec_backends import ExecBackend
from managers.cpu.containers.forking import ContainerForking
from managers.cpu.containers.living_store import LivingContainers, RestingShares
from managers.cpu.containers.moving import ContainerMoving, MovingTools
from managers.cpu.containers.run import ContainerRun, ContainerTools
from managers.cpu.containers.sessions import ContainerSessions
from managers.cpu.containers.settings import ContainerSettings
from managers.cpu.containers.survey import survey
from managers.cpu.disk_watch import DiskQuotas, DiskWatch
from managers.cpu.door_access import DoorAccess, RunningTree, is_in_container
from managers.cpu.egress.gateway import EgressGateway
from managers.cpu.egress.proxy import EgressProxy
from managers.cpu.egress.usage import EgressUsage
from managers.cpu.files.file_tree import read_whole, write_whole
from managers.cpu.files.tree_transfers import TreeTransfers
from managers.cpu.live_output import LiveOutputs
from managers.cpu.process.process_tag import ProcessTagger
from managers.cpu.sessions.run import SessionRun
from managers.cpu.shared_cores import SharedCores
from managers.cpu.topology import physical_cores
from managers.cpu.tree.loop_disks import wants_disks
from managers.cpu.workspaces import take_lock

#: Cores of so many environments are checked at a time: each takes some 0.1 ms.
_CHECKS_AT_ONCE = 16

_log = logging.getLogger(__name__)


class ContainerDriver:
    """Runs commands in containers of a Docker Engine."""

    #: Containers that wait for a trajectory, known once it is open.
    prepared: Warming
    kinds = frozenset({Kind.EXEC})

    def __init__(self, context: DriverContext, proxy: EgressProxy | None = None) -> None:
        self._settings = ContainerSettings.parse(context.settings)
        self._wants_disks = wants_disks(context.settings)
        self._directory = context.state_directory
        partition = SharedCores.choose(usable_cores(), context.settings)
        self._cores = physical_cores(partition.grantable)
        self._shared = physical_cores(partition.shared)
        self._parking = partition.parking
        #: Where no core is shared, what runs between actions yields to the action that has the core.
        self._occupied = CpuShare(partition.parking, yields=not partition.shared)
        self._engine = DockerEngine(self._settings.host, self._settings.engine_seconds)
        self._disk = DiskWatch(DiskQuotas.parse(context.settings, context.state_directory))
        self._egress = EgressGateway(proxy or EgressProxy(EgressUsage()))
        self._lock = -1
        self._tools: ContainerTools | None = None
        self._isolation = "docker"
        #: Live output of its runs.
        self.outputs = LiveOutputs()
        self._runs: OrderRuns[ContainerRun | SessionRun] = OrderRuns(self._remove_marks)
        #: What uses an environment waits until the former one of its trajectory is removed.
        self._removals = Removals()
        self._sessions = ContainerSessions(self._removals)
        #: Sessions of its environments.
        self.sessions: SessionServing = self._sessions.service
        #: Moves of its environments.
        self.moving = ContainerMoving(self._directory, self._removals, self._sessions.service)
        self._chores: list[asyncio.Task[None]] = []
        self._access: DoorAccess | None = None
        self._forking: ContainerForking | None = None
        #: Number of foreign changes of cores that were repaired.
        self.repairs = 0

    @property
    def isolation(self) -> str:
        """Isolation of commands, known once it is open: ``docker-direct`` or ``docker-api``."""
        return self._isolation

    @property
    def protection(self) -> Protection:
        """What protects commands, known once it is open."""
        disk = "" if self._tools is None else self._tools.site.layers.text
        return protection(self._engine.info, self._isolation, self._settings, disk)

    async def open(self) -> list[Leftover]:
        """End actions of a dead predecessor; return the attempts it had started. Called once."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = take_lock(self._directory)
        try:
            await self._engine.open()
            return await self._begin()
        except BaseException:
            await self.close()
            raise

    async def _begin(self) -> list[Leftover]:
        site = await survey(
            self._engine, self._settings, self._directory, self._parking, self._disk,
            wants_disks=self._wants_disks,
        )  # fmt: skip
        backend: ExecBackend = (
            EngineBackend(self._engine) if site.trees is None else CgroupBackend(self._settings)
        )
        self._isolation = f"docker-{backend.name}"
        environments = EnvironmentStore(site)
        self.prepared = environments.warm
        marks = StartLog(self._directory / "marks.log")
        marked = await asyncio.to_thread(marks.open)
        tagger = await asyncio.to_thread(ProcessTagger.load, self._directory / "driver.key")
        living = LivingContainers(
            environments,
            tagger,
            self._sessions.forget,
            RestingShares(site.parked, self._occupied),
            possible=site.trees is not None,
        )
        found = await reconcile.take_over(site, environments, backend, living)
        self._tools = ContainerTools(
            site,
            environments,
            backend,
            StartLogWriter(marks, "tangram-marker"),
            self._egress,
            self.outputs,
            living,
            self._cores,
            self._shared,
        )
        await self._sessions.begin(self._tools)
        self._forking = ContainerForking(site, environments, living, self._sessions.idle_shells)
        await asyncio.to_thread(
            self.moving.open, MovingTools(site, environments, living, self._forking)
        )
        await self._forking.collect()
        environments.open()
        for each in environments.all():
            self._disk.adopt([each.directory], each.written)
        self._chores = [
            asyncio.create_task(self._disk.run()),
            asyncio.create_task(self._repeat(self._settings.sweep_seconds, self._sweep)),
            asyncio.create_task(self._repeat(self._settings.reconcile_seconds, self.maintain)),
        ]
        return [leftover(mark, ended=mark in found.ended) for mark in marked]

    def egress_facts(self) -> dict[str, Any]:
        """Return what environments with ``network: egress`` used, and what was refused."""
        return self._egress.proxy.usage.facts()

    async def run(self, order: RunOrder, started: Callable[[], None]) -> RunReport:
        """Run one action to its end. An order that runs already is not run twice."""
        tools = self._tools
        if tools is None:
            return CLOSED
        entry = await self._removals.enter(order.action.trajectory_key)

        def begin() -> ContainerRun | SessionRun:
            entry.leave()
            if order.action.exec is not None and order.action.exec.session is not None:
                return self._sessions.start(order, started)
            return ContainerRun(order, started, tools)

        try:
            return await self._runs.run(order, begin)
        finally:
            entry.leave()

    def stop(self, action_id: ActionId, outcome: Outcome, reason: str) -> None:
        """Stop a run; its report carries ``outcome`` unless it ended before."""
        self._runs.stop(action_id, outcome, reason)

    def resize(self, action_id: ActionId, attempt: int, allocation: Allocation) -> None:
        """Change the cores of a run; an attempt that does not run is ignored."""
        self._runs.resize(action_id, attempt, allocation)

    def forget(self, marks: Sequence[str]) -> None:
        """Remove the marks of attempts that are not ordered again, once these have ended."""
        self._runs.forget(marks)

    async def remove_environment(self, trajectory: TrajectoryKey) -> None:
        """Stop its runs and delete its environment. An unknown trajectory is ignored."""
        tools, why = self._open_tools(), "its environment is removed"
        stop = partial(self._runs.end_of, trajectory, Outcome.CANCELLED, why)
        async with self._removals.removing(trajectory, stop):
            await self._open_access().end(tools.site.workspaces.of(trajectory).name)
            await tools.environments.remove(trajectory)
            if self._forking is not None:
                await self._forking.forget(trajectory)

    async def fork_environment(self, order: ForkEnvironment) -> ForkReport:
        """Give each child of ``order`` a copy of the files of its source. Raises Conflict, StorageFull, OSError."""
        if self._forking is None:
            raise Unavailable("the driver is closed")
        return await self._forking.fork(order)

    async def drop_snapshot(self, project: str, name: str) -> None:
        """Delete what was packed of an environment; an unknown name is ignored."""
        await asyncio.to_thread(self.moving.packed.drop, project, name)

    async def snapshots(self) -> list[tuple[str, str]]:
        """Return project and name of what was packed here."""
        return await asyncio.to_thread(self.moving.packed.all)

    def export_snapshot(self, project: str, name: str) -> AsyncIterator[bytes]:
        """Yield what was packed as an archive for another node. Raises NotFound, Unavailable."""
        return self.moving.packed.export(project, name)

    async def files(self, trajectory: TrajectoryKey) -> TreeTransfers:
        """Return the files of a trajectory. Raises NotFound with code ``not_here``."""
        workspaces = self._open_tools().site.workspaces
        return self._files_of(trajectory, workspaces.existing(trajectory))

    def check_writable(self, trajectory: TrajectoryKey) -> None:
        """Raise Conflict while a reward command runs in the container of a trajectory."""
        self._open_tools().living.check_not_judged(trajectory)

    async def make_files(
        self, trajectory: TrajectoryKey, spec: EnvironmentSpec | None = None
    ) -> TreeTransfers:
        """Return the files of a trajectory, whose workspace is made if missing. Raises Unavailable."""
        site, declared = self._open_tools().site, spec or EnvironmentSpec()
        refuse_snapshot(declared)
        async with self._removals.using(trajectory):
            folder = await asyncio.to_thread(site.folder_of, trajectory, declared)
            return self._files_of(trajectory, folder)

    async def connect_port(self, trajectory: TrajectoryKey, port: int) -> int:
        """Return the descriptor of a socket that is connected to a port of an environment."""
        return await self._open_access().connect_port(trajectory, port)

    async def put_file(self, trajectory: TrajectoryKey, path: str, content: bytes) -> None:
        """Write a file. Raises InvalidRequest for a path that leaves the tree."""
        await asyncio.to_thread(write_whole, await self.make_files(trajectory), path, content)

    async def get_file(self, trajectory: TrajectoryKey, path: str, limit_bytes: int) -> bytes:
        """Read a file. Raises InvalidRequest (leaves the tree, too large), NotFound."""
        return await asyncio.to_thread(read_whole, await self.files(trajectory), path, limit_bytes)

    def _files_of(self, trajectory: TrajectoryKey, workspace: Path) -> TreeTransfers:
        # Before its first action a workspace has no container, and its quota is the node's default.
        environment = self._environment_of(trajectory)
        if environment is None:
            return self._open_access().files_of(trajectory, workspace)
        quota = self._open_tools().site.quota_of(environment)
        return self._open_access().files_of(trajectory, workspace, quota, environment.directory)

    def _environment_of(self, trajectory: TrajectoryKey) -> Environment | None:
        known = (each for each in self.containers() if each.trajectory == trajectory)
        return next((each for each in known if not each.lost), None)

    def _running(self, trajectory: TrajectoryKey) -> RunningTree | None:
        """Return the tree of a container; None where it does not run, or not on this machine."""
        environment = self._environment_of(trajectory)
        if environment is None or not environment.pid or not self._engine.is_local:
            return None
        if not is_in_container(environment.pid, environment.container):
            return None
        return RunningTree(
            environment.pid,
            partial(is_in_container, environment.pid, environment.container),
            environment.processes,
            has_egress=environment.spec.network == NETWORK_EGRESS,
        )

    def _open_access(self) -> DoorAccess:
        if self._access is None:
            self._access = DoorAccess(self._open_tools().site.workspaces, self._disk, self._running)
        return self._access

    def inspect_environment(self, trajectory: TrajectoryKey) -> EnvironmentFacts:
        """Return the environment of a trajectory, which may have none here."""
        known = self._environment_of(trajectory)
        if known is None:
            return EnvironmentFacts("none")
        return EnvironmentFacts("running", self._disk.used_bytes(known.directory.name))

    def disk_folders(self) -> list[Path]:
        """Return the folders of workspaces and, on this machine, of the engine's layers."""
        root = str(self._engine.info.get("DockerRootDir") or "")
        return [self._directory, *([Path(root)] if root and self._engine.is_local else [])]

    async def disk_usage(self) -> list[EnvironmentDisk]:
        """Measure recent environments now; return the usage of all."""
        return await self._disk.usage()

    def disk_is_free(self) -> None:
        """Take present usages as the base of growth."""
        self._disk.calm()

    async def clear_environment(self, name: str, reason: str) -> None:
        """End the actions of an environment and delete its files; later ones fail with the reason.

        The container is removed first, which ends whatever runs in it.
        """
        tools = self._open_tools()
        environment = next((each for each in self.containers() if each.name == name), None)
        if environment is None:
            return
        reconcile.lose(environment, reason)
        for run in self._runs:
            if run.workspace == name:
                run.stop(Outcome.INFRA_FAILED, reason)
        await environment.release_held()  # else the engine waits for its end
        await self._engine.remove(environment.container)
        await self._runs.end(lambda run: run.workspace == name, Outcome.INFRA_FAILED, reason)
        await self._open_access().end(environment.folder.name)
        await asyncio.to_thread(tools.site.workspaces.remove, environment.folder)
        self._disk.drop(name)

    async def close(self) -> None:
        """Stop all runs; the containers of trajectories stay for a successor."""
        tools, self._tools = self._tools, None
        for chore in self._chores:
            chore.cancel()
        if self._chores:
            await asyncio.wait(self._chores)
        await self._runs.end_all(SHUTTING_DOWN)
        if self._access is not None:
            await self._access.close()
        self._sessions.close()
        if tools is not None:
            tools.living.close()
            await tools.environments.close()
            if tools.site.trees is not None:
                tools.site.trees.remove_parent(tools.site.parent)
            await asyncio.to_thread(tools.marks.close)
            if tools.site.layers.disks is not None:
                await asyncio.to_thread(tools.site.layers.disks.close)
        await self._engine.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @property
    def environments(self) -> LivingContainers | None:
        """Living environments, known once it is open."""
        return None if self._tools is None else self._tools.living

    def containers(self) -> list[Environment]:
        """Return the environments of this driver."""
        return self._open_tools().environments.all()

    @property
    def owner(self) -> str:
        """Value of the owner label of our containers."""
        return self._open_tools().site.owner

    def _open_tools(self) -> ContainerTools:
        if self._tools is None:
            raise Unavailable("the driver is closed")
        return self._tools

    def _remove_marks(self, marks: Sequence[str]) -> None:
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
                _log.warning("maintenance of the containers failed, and is retried: %s", error)

    async def _sweep(self) -> None:
        """Repair changed cores, yielding to other tasks after a few environments; end what is too old."""
        for living in self._open_tools().living.sweep():
            if not living.environment.lock.locked():
                self._disk.end(living.directory)
        for number, environment in enumerate(self._open_tools().environments.all()):
            if number % _CHECKS_AT_ONCE == _CHECKS_AT_ONCE - 1:
                await asyncio.sleep(0)
            if environment.group is not None and not environment.lost:
                try:
                    self.repairs += repair(environment)
                except FileNotFoundError:  # its container ended; `reconcile` finds that
                    continue

    async def maintain(self) -> None:
        """Reconcile containers with the engine, and remove expired ones. Raises DockerUnavailable."""
        tools = self._open_tools()
        due = await reconcile.reconcile(tools.site, tools.environments)
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
        """Remove an expired or idle container, and mark its environment as lost."""
        await self._runs.end_of(
            environment.trajectory, Outcome.INFRA_FAILED, "its environment has expired"
        )
        reconcile.lose(environment, "it was idle for too long, or passed its expiry")
        await self._engine.remove(environment.container)
