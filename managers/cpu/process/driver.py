"""The driver for plain processes.

Theory of operation. An order becomes a `ProcessRun` in a task of its own that is never cancelled: when
`run` is cancelled, the action is stopped and its end is awaited. All processes of a run inherit a tag
(`process_tag`), by which they are found and ended. Start marks (`start_log`) are on disk before a
command is spawned, so a restarted driver knows which attempts may have run, and ends those that still
do by their tags. A lock in the state directory excludes a second driver.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from domain.action import EnvironmentSpec, Kind, Outcome
from domain.allocation import Allocation
from domain.decisions import ForkEnvironment
from domain.errors import Conflict
from domain.forks import ForkReport
from domain.ids import ActionId, TrajectoryKey
from domain.parking import ParkReport
from domain.ports import DriverContext, EnvironmentDisk, Leftover, RunOrder, RunReport
from domain.ports.sessions import SessionServing
from domain.protection import Protection
from domain.snapshots import SnapshotReport
from managers.common.affinity import usable_cores
from managers.common.memory_shares import real_memory_bytes
from managers.common.order_runs import CLOSED, SHUTTING_DOWN, OrderRuns
from managers.common.removals import Removals
from managers.common.start_log import StartLog
from managers.common.visible_gpus import find_devices
from managers.cpu.disk_watch import DiskQuotas, DiskWatch
from managers.cpu.door_access import DoorAccess, tree_of
from managers.cpu.egress.gateway import EgressGateway
from managers.cpu.egress.kept_networks import KeptNetworks
from managers.cpu.egress.proxy import EgressProxy
from managers.cpu.egress.usage import EgressUsage
from managers.cpu.environment.adoption import InitRecord, find_living, kept_tags
from managers.cpu.environment.driver_environments import DriverEnvironments, confine
from managers.cpu.environment.freezers import Freezers, open_freezers
from managers.cpu.environment.inspection import EnvironmentInspection
from managers.cpu.environment.parking import EnvironmentParking
from managers.cpu.environment.protocol import LivingEnvironment, NoEnvironment
from managers.cpu.environment.starting import StoreTools
from managers.cpu.environment.store import KeptEnvironments, end_unadopted
from managers.cpu.files.tree_transfers import TreeTransfers
from managers.cpu.live_output import LiveOutputs
from managers.cpu.memory_groups import MemoryGroups, MemoryLimits, open_memory_groups
from managers.cpu.probe import probe_memory
from managers.cpu.process.invocation import CommandBuilder, ResourceLimits
from managers.cpu.process.isolation import Isolation
from managers.cpu.process.launcher import Launcher
from managers.cpu.process.memory_watch import watch_memory
from managers.cpu.process.moving import ProcessMoving
from managers.cpu.process.process_groups import ProcessGroups, open_process_groups
from managers.cpu.process.process_table import ProcessTable, become_subreaper
from managers.cpu.process.process_tag import ProcessTagger
from managers.cpu.process.run import ProcessRun, ProcessTools
from managers.cpu.process.sessions import ProcessSessions
from managers.cpu.process.settings import ProcessSettings, parse_wanted, raise_open_files
from managers.cpu.sessions.run import SessionRun
from managers.cpu.tree.forkable_trees import ForkableTrees
from managers.cpu.tree.forking import EnvironmentForking
from managers.cpu.tree.image_library import ImageLibrary
from managers.cpu.tree.layers import ENVIRONMENTS
from managers.cpu.tree.loop_disks import LoopDisks, describe
from managers.cpu.tree.snapshot import SnapshotStore
from managers.cpu.tree.snapshot_keeper import SnapshotKeeper
from managers.cpu.tree.trees import Trees
from managers.cpu.workspaces import Workspaces, take_lock

#: Longest wait for the end of actions whose files must be deleted.
_CLEAR_SECONDS: Final = 3.0
_log = logging.getLogger(__name__)


class ProcessDriver:
    """Runs commands as processes of this machine."""

    kinds = frozenset({Kind.EXEC})

    # Set when it is opened.
    _disks: LoopDisks | None = None
    _lock = -1
    _tools: ProcessTools | None = None
    _groups: ProcessGroups | None = None
    _living: DriverEnvironments | None = None
    _freezers: Freezers | None = None

    def __init__(self, context: DriverContext, proxy: EgressProxy | None = None) -> None:
        self._settings, self._given = ProcessSettings.parse(context.settings), context.settings
        self._directory = context.state_directory
        self._workspaces = Workspaces(self._directory)
        self.trees = trees = Trees(self._directory)
        trees.arrivals.fetch = context.fetch_image
        self._forkable = ForkableTrees(self._directory, trees)
        store = SnapshotStore(self._directory)
        trees.further_records = store.records
        #: What uses an environment waits until the former one of its name is removed.
        self._removals = Removals()
        self._sessions = shells = ProcessSessions(self._removals)
        #: Sessions of its environments.
        self.sessions: SessionServing = shells.service
        self._forking = EnvironmentForking(
            self._directory, self._workspaces, self._forkable, self._running, shells, store.stacks
        )
        self._snapshots = SnapshotKeeper(
            self._directory, self._workspaces, self._forking, store, context.fetch_snapshot
        )
        self._cpus = usable_cores()
        self._isolation = Isolation(
            self._settings, context.settings, self._workspaces, self.trees, self._forkable
        )
        self._parking = EnvironmentParking(
            lambda name: 0 if self.memory is None else self.memory.reclaim(name),
            self._settings.environment_park_seconds,
        )
        #: Living environments, known once it is open; None: it keeps none.
        self.environments: KeptEnvironments | None = None
        self._egress = EgressGateway(proxy or EgressProxy(EgressUsage()))
        #: Live output of its runs.
        self.outputs = LiveOutputs()
        self._runs: OrderRuns[ProcessRun | SessionRun] = OrderRuns(self._remove_marks)
        self._limits = MemoryLimits.of(
            real_memory_bytes(),
            probe_memory(context).capacity,
            self._settings.environment_memory_bytes,
        )
        #: None: memory is watched.
        self.memory: MemoryGroups | None = None
        self._watches: list[asyncio.Task[None]] = []
        self._disk = DiskWatch(DiskQuotas.parse(context.settings, context.state_directory))
        self._access = DoorAccess(
            self._workspaces, self._disk, partial(tree_of, self._running), self._resting_root
        )
        self._networks = KeptNetworks(self._egress, self._access.ports)
        self.moving = ProcessMoving(
            self._workspaces, self.trees, self._isolation, self._snapshots, shells, self._removals,
            self._running, self._wake_idle, self.make_files)  # fmt: skip
        inspection = EnvironmentInspection(self._running, self._parking, self._disk.used_bytes)
        self.inspect_environment = inspection.inspect
        self.images = self.prepared = ImageLibrary(self._directory, trees.images, trees.arrivals)
        #: How the memory of commands is limited, known once it is open.
        self.memory_protection = ""

    @property
    def isolation(self) -> str:
        """Isolation of commands, known once it is open: ``bwrap``, ``apptainer`` or ``process``."""
        return self._isolation.name

    @property
    def protection(self) -> Protection:
        """What protects commands, known once it is open."""
        return self._isolation.protection(self.memory_protection, describe(self._disks))

    async def open(self) -> list[Leftover]:
        """End processes of a dead predecessor; return the attempts it had started. Called once."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = take_lock(self._directory)
        become_subreaper()
        raise_open_files()
        tagger = ProcessTagger.load(self._directory / "driver.key")
        table = ProcessTable(tagger)
        marks = StartLog(self._directory / "marks.log")
        marked = await asyncio.to_thread(marks.open)
        living = await asyncio.to_thread(find_living, self._directory / ENVIRONMENTS, tagger)
        with contextlib.suppress(OSError):  # then programs are stopped by signals
            self._freezers = await asyncio.to_thread(open_freezers, f"{tagger.name}-frozen")
        kept, patience = kept_tags(living, tagger), self._settings.patience_seconds
        leftovers = await table.end_marked(marked, kept, patience)
        await self._group_processes(tagger.name, living)
        await self._limit_memory(tagger.name, table, living)
        if self._settings.environment_disks == "auto" and os.geteuid() == 0:
            self._disks = LoopDisks(self._directory, self._disk.quotas.files)
            self._workspaces.disks = self._disks
            await asyncio.to_thread(self._disks.open)
        await asyncio.to_thread(self._workspaces.open)
        await asyncio.to_thread(self._forking.open)
        await self._forking.collect()
        settings, limits = self._settings, self._settings.resource_limits()
        self._devices = await asyncio.to_thread(find_devices, self._given)
        trial, tmpfs_bytes = limits.prefix(tagger.tag("trial")), self._limits.tmpfs_bytes
        await asyncio.to_thread(self._isolation.choose, trial, tmpfs_bytes, self._disks)
        self._isolation.begin(self._directory, tagger, table)
        sandbox, launcher = self._isolation.sandbox, Launcher(marks)
        await self._environment_keep(tagger, table, limits, living)
        self._tools = ProcessTools(
            tagger,
            table,
            launcher,
            self._workspaces,
            CommandBuilder(self._cpus, limits, sandbox, self._devices),
            self._limits,
            self._egress,
            self._networks,
            self.memory,
            self._groups,
            None if sandbox is None else sandbox.families,
            self._disk,
            self.outputs,
            self.trees,
            self.environments,
            self._isolation,
            settings.grace_seconds,
            settings.patience_seconds,
        )
        await self._sessions.begin(self._tools)
        if self._living is not None:
            self._living.begin()
        self._disk.adopt(await asyncio.to_thread(self._workspaces.all))
        self._watches.append(asyncio.create_task(self._disk.run()))
        return leftovers

    def egress_facts(self) -> dict[str, Any]:
        """Return what environments with ``network: egress`` used, and what was refused."""
        return self._egress.proxy.usage.facts()

    async def run(self, order: RunOrder, started: Callable[[], None]) -> RunReport:
        """Run one action to its end. An order that runs already is not run twice."""
        tools = self._tools
        if tools is None:
            return CLOSED
        entry = await self._removals.enter(order.action.trajectory_key)

        def begin() -> ProcessRun | SessionRun:
            entry.leave()
            if order.action.exec is not None and order.action.exec.session is not None:
                return self._sessions.start(order, started)
            return ProcessRun(order, started, tools)

        try:
            if (failure := await self._snapshots.begin(order)) is not None:
                return failure
            await self._parking.wake(order.action.trajectory_key)
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
        """Stop its runs and delete its workspace. An unknown trajectory is ignored."""
        why = "its environment is removed"
        stop = partial(self._runs.end_of, trajectory, Outcome.CANCELLED, why)
        async with self._removals.removing(trajectory, stop):
            await self._remove(trajectory)

    async def _remove(self, trajectory: TrajectoryKey) -> None:
        workspace = self._workspaces.of(trajectory)
        if self.environments is not None:
            self._parking.forget(trajectory)
            await self.environments.remove(workspace.name, "its trajectory has ended")
        self._sessions.forget(workspace.name)
        await self._access.end(workspace.name)
        await self._networks.end(workspace.name)
        await asyncio.to_thread(self._workspaces.remove, workspace)
        self._forking.collect_soon()
        self._disk.drop(workspace.name)
        await self._isolation.discard_image(workspace)
        if self.memory is not None:
            self.memory.remove(workspace.name)

    async def fork_environment(self, order: ForkEnvironment) -> ForkReport:
        """Give each child of ``order`` the files of its source. Raises Conflict, StorageFull, OSError."""
        await self._wake_idle(order.source)
        source = self._running(order.source)
        report = await self._forking.fork(order)
        self._disk.adopt([self._workspaces.of(child) for child in order.children])
        if source is not None and self._living is not None:
            spec = order.environment or EnvironmentSpec()
            self._living.start_soon(order.children, spec, self._removals)
        return report

    async def take_snapshot(self, order: ForkEnvironment) -> SnapshotReport:
        """Store the files of an environment under a name. Raises Conflict, StorageFull, OSError."""
        await self._wake_idle(order.source)
        return await self._snapshots.take(order)

    def _acting(self) -> set[TrajectoryKey | None]:
        return {run.order.action.trajectory_key for run in self._runs}

    async def _wake_idle(self, trajectory: TrajectoryKey) -> None:
        if trajectory in self._acting():
            raise Conflict("a command runs in the environment")
        await self._parking.wake(trajectory)

    async def park_environment(self, trajectory: TrajectoryKey) -> ParkReport:
        """Park an environment until its next action. Raises Conflict, NotFound."""
        await self._wake_idle(trajectory)
        return await self._parking.park(self._running(trajectory))

    async def drop_snapshot(self, project: str, name: str) -> None:
        """Delete a snapshot; an unknown one is ignored."""
        await self._snapshots.drop(project, name)

    async def snapshots(self) -> list[tuple[str, str]]:
        """Return project and name of the snapshots on this node."""
        return await self._snapshots.all()

    def export_snapshot(self, project: str, name: str) -> AsyncIterator[bytes]:
        """Yield a snapshot as an archive for another node. Raises NotFound, Unavailable."""
        return self._snapshots.export(project, name)

    def disk_folders(self) -> list[Path]:
        """Return the folder of workspaces."""
        return [self._directory]

    async def disk_usage(self) -> list[EnvironmentDisk]:
        """Measure recent environments now; return the usage of all."""
        return await self._disk.usage()

    def disk_is_free(self) -> None:
        """Take present usages as the base of growth."""
        self._disk.calm()

    async def clear_environment(self, name: str, reason: str) -> None:
        """End the actions of an environment and delete its files; later ones fail with the reason."""
        # A process that cannot be killed holds no space for ever.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLEAR_SECONDS):
                await self._runs.end(
                    lambda run: run.workspace == name, Outcome.INFRA_FAILED, reason
                )
        if self.environments is not None:
            await self.environments.remove(name, reason)
        self._sessions.forget(name)
        await self._access.end(name)
        await self._networks.end(name)
        await asyncio.to_thread(self._workspaces.lose, name, reason)
        self._disk.drop(name)
        self.trees.forget(name)

    async def files(self, trajectory: TrajectoryKey) -> TreeTransfers:
        """Return the files of a trajectory. Raises NotFound with code ``not_here``, Unavailable."""
        return await asyncio.to_thread(self._access.files, trajectory)

    def check_writable(self, trajectory: TrajectoryKey) -> None:
        """Raise Conflict while a reward command runs beside the environment of a trajectory."""
        if self.environments is not None:
            self.environments.check_not_judged(self._workspaces.of(trajectory).name)

    async def make_files(
        self, trajectory: TrajectoryKey, spec: EnvironmentSpec | None = None
    ) -> TreeTransfers:
        """Return the files of a trajectory, whose environment is made if missing. Raises Unavailable."""
        async with self._removals.using(trajectory):
            return await self._make_files(trajectory, spec or EnvironmentSpec())

    async def _make_files(
        self, trajectory: TrajectoryKey, declared: EnvironmentSpec
    ) -> TreeTransfers:
        if declared.snapshot is not None:
            await self._snapshots.ensure(trajectory, declared)
        disk_bytes = self._disk.quotas.of_disk(declared.disk_bytes)
        image = declared.image or ""
        folder = await asyncio.to_thread(self._workspaces.ensure, trajectory, disk_bytes, image)
        await self._isolation.ensure_image(declared, folder)
        if image or self.trees.everywhere:
            await asyncio.to_thread(self._forkable.begin, folder, declared)
        if self.environments is not None:
            await self.environments.open(trajectory, declared)
        return await asyncio.to_thread(
            self._access.files_of, trajectory, folder, declared.disk_bytes
        )

    async def connect_port(self, trajectory: TrajectoryKey, port: int) -> int:
        """Return the descriptor of a socket that is connected to a port of an environment."""
        return await self._access.connect_port(trajectory, port)

    async def put_file(self, trajectory: TrajectoryKey, path: str, content: bytes) -> None:
        """Write a file. Raises InvalidRequest for a path that leaves the tree."""
        async with self._removals.using(trajectory):
            await asyncio.to_thread(self._access.put, trajectory, path, content)

    async def get_file(self, trajectory: TrajectoryKey, path: str, limit_bytes: int) -> bytes:
        """Read a file. Raises InvalidRequest (leaves the tree, too large), NotFound."""
        return await asyncio.to_thread(self._access.get, trajectory, path, limit_bytes)

    def _resting_root(self, folder: Path) -> Callable[[], int] | None:
        """Return what opens the tree of an environment that does not run; None: it has only a workspace."""
        running = None if self.environments is None else self.environments.named
        open_root = partial(self._forkable.open_root, folder, running)
        return open_root if self.trees.is_whole(folder) else None

    async def close(self) -> None:
        """Stop all runs."""
        tools, self._tools = self._tools, None
        await self._runs.end_all(SHUTTING_DOWN)
        await self._isolation.close()
        await self._networks.close()
        await self._access.close()
        self._sessions.close()
        if self._living is not None:
            await self._living.close(keep=self._settings.environment_keep)
        await self._forking.close()
        for watch in self._watches:
            watch.cancel()
        for groups in (self._groups, self._freezers, self.memory):
            if groups is not None:
                await asyncio.to_thread(groups.close)
        if tools is not None:
            await asyncio.to_thread(tools.launcher.close)
        for trees in (self._forkable, self.trees):
            await asyncio.to_thread(trees.close)
        if self._forkable.families is not None:
            self._forkable.families.close()
        if self._disks is not None:
            await asyncio.to_thread(self._disks.close)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _running(self, trajectory: TrajectoryKey) -> LivingEnvironment | None:
        with contextlib.suppress(NoEnvironment):
            return None if self.environments is None else self.environments.of(trajectory)
        return None

    async def _environment_keep(
        self,
        tagger: ProcessTagger,
        table: ProcessTable,
        limits: ResourceLimits,
        living: dict[str, InitRecord],
    ) -> None:
        sandbox = self._isolation.sandbox
        if sandbox is None:
            for record in living.values():
                await end_unadopted(record)
            return
        confinement = await asyncio.to_thread(
            confine, tagger, self._cpus, self._given, self._freezers
        )
        quotas, warm = self._disk.quotas, parse_wanted(self._settings.environment_warm)
        store = StoreTools(
            self._workspaces, sandbox, limits, self._limits, self.memory, self._groups,
            table, confinement, self.trees, self._forkable.switcher, self._directory / "shells",
            quotas.of_environment, quotas.of_disk, self._disk.end, self._isolation.starts,
        )  # fmt: skip
        self._living = opened = DriverEnvironments(store, warm)
        self.environments, self.images.prepared = opened.kept, opened.prepared
        await opened.adopt(living)
        parks = asyncio.create_task(self._parking.run(self.environments.all, self._acting))
        self._watches.append(parks)

    async def _group_processes(self, name: str, living: Collection[str]) -> None:
        processes = self._settings.max_processes
        with contextlib.suppress(OSError):  # then processes are found by their tags
            self._groups = await asyncio.to_thread(
                open_process_groups, f"{name}-actions", processes, living
            )

    def _remove_marks(self, marks: Sequence[str]) -> None:
        if self._tools is not None:
            self._tools.launcher.forget(marks)

    async def _limit_memory(self, name: str, table: ProcessTable, living: Collection[str]) -> None:
        try:
            self.memory = await asyncio.to_thread(
                open_memory_groups, name, self._limits.total_bytes, living
            )
            self.memory_protection = "limited by control groups"
        except OSError as error:
            self._watches.append(asyncio.create_task(watch_memory(self._runs, table)))
            self.memory_protection = f"watched, without control groups: {error}"
            _log.warning("memory of actions is %s", self.memory_protection)
