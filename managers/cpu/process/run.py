"""Run of one action on this node: prepare, mark and spawn, wait, end leftovers, report."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from domain.action import Outcome
from domain.allocation import Allocation
from domain.confinement import NETWORK_EGRESS
from domain.ids import TrajectoryKey
from domain.ports import ExecResult, RunOrder, RunReport
from managers.common.start_log import WithdrawnError
from managers.cpu.command_line import CannotSpawnError
from managers.cpu.disk_watch import DiskWatch
from managers.cpu.egress.gateway import EgressDoor, EgressGateway, EgressUnavailable
from managers.cpu.egress.kept_networks import KeptNetworks
from managers.cpu.environment.protocol import EnvironmentLost
from managers.cpu.environment.store import KeptEnvironments, opened_tree
from managers.cpu.kept_output import OutputLimits
from managers.cpu.live_output import LiveOutputs
from managers.cpu.memory_groups import MemoryGroup, MemoryGroups, MemoryLimits, watch_kills
from managers.cpu.output import Capture, exec_result
from managers.cpu.process.commands import Command, FreshCommand, KeptCommand, RunningProgram
from managers.cpu.process.families import Families
from managers.cpu.process.invocation import CommandBuilder, environment_of
from managers.cpu.process.isolation import Isolation
from managers.cpu.process.launcher import Launcher
from managers.cpu.process.namespaces import UserNamespace
from managers.cpu.process.process_groups import ProcessGroups
from managers.cpu.process.process_table import ProcessTable, Termination
from managers.cpu.process.process_tag import ProcessTagger
from managers.cpu.reward_files import FilesChanged, RewardFiles
from managers.cpu.tree.images import ImageMissing
from managers.cpu.tree.trees import OpenTree, Trees, TreeUsers
from managers.cpu.workspaces import MOUNT, LostWorkspaceError, Workspaces, safe_name, workspace_of

#: Attempts to start a command in an environment whose init may have ended unnoticed.
_STARTS: Final = 2

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ProcessTools:
    """Objects that all runs of a driver share."""

    tagger: ProcessTagger
    table: ProcessTable
    launcher: Launcher
    workspaces: Workspaces
    builder: CommandBuilder
    limits: MemoryLimits
    egress: EgressGateway
    #: Egress of living environments.
    networks: KeptNetworks
    #: None: memory is watched, not limited.
    memory: MemoryGroups | None
    #: Groups of the processes of each action; None: they are found by their tags alone.
    groups: ProcessGroups | None
    #: Uids of environments, where the sandbox has any.
    families: Families | None
    disk: DiskWatch
    outputs: LiveOutputs
    trees: Trees
    #: Living environments of trajectories; None: every command has a sandbox of its own, or none.
    environments: KeptEnvironments | None
    isolation: Isolation
    #: Time between SIGTERM and SIGKILL.
    grace_seconds: float
    #: Longest wait for killed processes before the report names them.
    patience_seconds: float


class ProcessRun:
    """One order being executed."""

    def __init__(self, order: RunOrder, started: Callable[[], None], tools: ProcessTools) -> None:
        self.order = order
        self._started = started
        self._tools = tools
        self.tag = tools.tagger.tag(order.mark)
        self.memory_limit_bytes = tools.limits.of_environment(environment_of(order).memory_bytes)
        self._stopping: tuple[Outcome, str] | None = None
        self._woken = asyncio.Event()
        self._exited = asyncio.Event()
        self._program: RunningProgram | None = None
        self._command: Command | None = None
        self._spawned_at = self._ended_at = 0.0
        #: CPUs after the last resize.
        self._cpus: frozenset[int] | None = None
        self._memory: MemoryGroup | None = None
        #: Name of its workspace, once it has one.
        self.workspace = ""
        #: Describes what the kernel killed for lack of memory.
        self._kills: Callable[[], str] = str
        #: None: its reward needs no file.
        self._reward = RewardFiles.of(order)

    def stop(self, outcome: Outcome, reason: str) -> None:
        """Stop it with ``outcome``, unless it has ended or is being stopped already."""
        if self._stopping is None and not self._exited.is_set():
            self._stopping = outcome, reason
            self._woken.set()

    def resize(self, allocation: Allocation) -> None:
        """Change its cores; a command that is not spawned yet is moved at its spawn."""
        self._cpus = self._tools.builder.cpus_of(allocation)
        self._pin()

    def _pin(self) -> None:
        if self._cpus is not None and self._command is not None and not self._exited.is_set():
            self._command.resize(self._cpus)

    async def live(self) -> RunReport:
        """Run the order to its end. Raises nothing; must not be cancelled."""
        self._tools.table.expect(self.tag)
        try:
            return await self._work()
        except CannotSpawnError as error:
            result = ExecResult(error.exit_code, "", f"tangram: {error}\n", truncated=False)
            return RunReport(Outcome.COMPLETED, 0.0, result)
        except EgressUnavailable as error:
            detail = f"the node cannot run it with network egress: {error}"
            return RunReport(Outcome.INFRA_FAILED, 0.0, detail=detail)
        except ImageMissing as error:
            # Not an error of the machine, so the order is not tried again elsewhere.
            return RunReport(Outcome.INFRA_FAILED, 0.0, detail=str(error))
        except LostWorkspaceError as error:
            # Another attempt would fail as well, so this one does not count as never started.
            detail = f"the trajectory's environment is lost: {error}"
            return RunReport(Outcome.INFRA_FAILED, 0.0, detail=detail)
        except WithdrawnError:
            outcome, reason = self._stopping or (Outcome.INFRA_FAILED, "withdrawn")
            return RunReport(outcome, 0.0, detail=reason, never_started=True)
        except Exception as error:
            if not isinstance(error, OSError):
                _log.exception("action %s failed in the driver", self.order.id)
            await self._abandon()
            return RunReport(
                Outcome.INFRA_FAILED,
                self._execution_seconds(),
                detail=f"the node could not run it: {type(error).__name__}: {error}",
                never_started=self._program is None,
            )
        finally:
            # A process that could not be ended must still be waited for.
            if self._program is None or self._exited.is_set():
                self._tools.table.leave(self.tag)

    async def _work(self) -> RunReport:
        trajectory = self.order.action.trajectory_key
        workspace = await self._folder(trajectory)
        spec = environment_of(self.order)
        image = self._tools.isolation.ensure_image(spec, workspace, self._woken)
        if trajectory is not None:
            await image
            kept = self._tools.environments
            if kept is not None and self._is_kept():
                return await self._execute_inside(kept, trajectory)
            if kept is not None:
                await kept.decline(workspace.name)
            return await self._execute_owned(workspace)
        try:
            await image
            return await self._execute_owned(workspace)
        finally:
            self._tools.disk.drop(workspace.name)
            await self._discard(workspace)
            await self._tools.isolation.discard_image(workspace)
            if self._tools.memory is not None:
                self._tools.memory.remove(workspace.name)

    async def _folder(self, trajectory: TrajectoryKey | None) -> Path:
        """Return the folder of its environment, made when missing: in a thread where it may get a disk."""
        workspaces, kept = self._tools.workspaces, self._tools.environments
        living = None if trajectory is None or kept is None else kept.named(safe_name(trajectory))
        if living is not None:
            return living.directory
        disk_bytes = self._tools.disk.quotas.of_disk(environment_of(self.order).disk_bytes)
        image = environment_of(self.order).image or ""
        find = partial(workspaces.alone, self.order.id, disk_bytes)
        if trajectory is not None:
            find = partial(workspaces.ensure, trajectory, disk_bytes, image)
        blocks = disk_bytes and workspaces.disks is not None
        return await asyncio.to_thread(find) if blocks else find()

    def _is_kept(self) -> bool:
        """Say whether it runs in the living environment of its trajectory."""
        return not self._tools.builder.needs_own_sandbox(self.order)

    async def _execute_inside(
        self, environments: KeptEnvironments, trajectory: TrajectoryKey
    ) -> RunReport:
        """Execute it in the living environment of its trajectory."""
        for _ in range(_STARTS - 1):
            try:
                return await self._execute_once(environments, trajectory)
            except EnvironmentLost as error:  # nothing was started
                _log.warning("environment of %s is started again: %s", self.order.id, error)
        return await self._execute_once(environments, trajectory)

    async def _execute_once(
        self, environments: KeptEnvironments, trajectory: TrajectoryKey
    ) -> RunReport:
        environment = await environments.open(trajectory, environment_of(self.order))
        if environment_of(self.order).network == NETWORK_EGRESS:
            await self._tools.networks.serve(environment, self.order)
        builder = self._tools.builder
        inside = builder.inside(self.order, self.tag, environment.home, environment.variables)
        self.workspace = environment.name
        self._limit_memory(environment.name)
        groups = environment.limits.processes
        group = None if groups is None else groups.action(self.tag)
        if group is not None:
            self._tools.table.hold_group(self.tag, group)
        command = KeptCommand(self.order, inside, environment, group, self._tools.launcher)
        try:
            return await self._capture(command, environment.directory)
        finally:
            self._tools.table.drop_group(self.tag, self._tools.groups, groups)

    async def _execute_owned(self, workspace: Path) -> RunReport:
        """Execute it under the uids of its workspace, where the node has uids for environments."""
        families = self._tools.families
        if families is None:
            return await self._execute_apart(workspace, None)
        # The first action of an environment prepares its namespace, in some milliseconds.
        namespace = families.enter_kept(workspace)
        if namespace is None:
            namespace = await asyncio.to_thread(families.enter, workspace)
        try:
            return await self._execute_apart(workspace, namespace)
        finally:
            families.leave(namespace)

    async def _execute_apart(self, workspace: Path, namespace: UserNamespace | None) -> RunReport:
        """Execute it in a sandbox of its own; a reward while no program of its environment can change files."""
        action, kept, files = self.order.action, self._tools.environments, workspace_of(workspace)
        shares = action.reward is None and not self._tools.trees.is_exclusive
        if shares or action.trajectory_key is None or kept is None:
            return await self._execute_rewarded(workspace, namespace, files)
        async with kept.judging(workspace.name) as living:
            if living is None:
                return await self._execute_rewarded(workspace, namespace, files)
            # Through its mount: a change below an overlay is not seen in it.
            seen, sealed = living.root / MOUNT[1:], partial(kept.sealing.sealed, living)
            try:
                return await self._execute_rewarded(workspace, namespace, seen, sealed)
            except FilesChanged as error:
                await living.end(f"its programs ran on before a reward: {error}")
                return await self._execute_rewarded(workspace, namespace, files)

    async def _execute_rewarded(
        self,
        workspace: Path,
        namespace: UserNamespace | None,
        files: Path,
        sealed: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
    ) -> RunReport:
        """Execute it with the files of its reward; ``files``: what commands see in ``/workspace``."""
        execute = partial(self._execute, workspace, namespace)
        if self._reward is None:
            async with sealed():
                return await execute()
        uid = None if namespace is None else namespace.uid
        mounted = self._tools.builder.sandbox is not None
        return await self._reward.around(execute, files, uid, mounted=mounted, sealed=sealed)

    async def _execute(self, workspace: Path, namespace: UserNamespace | None) -> RunReport:
        self.workspace = workspace.name
        self._limit_memory(workspace.name)
        entrances = self._enter_groups()
        tools, spec = self._tools, environment_of(self.order)
        quota = tools.disk.quotas.of_environment(spec.disk_bytes)
        trees, kept = tools.trees, tools.environments
        users = None if namespace is None else TreeUsers(namespace.uid, namespace.handle)
        try:
            async with opened_tree(trees, kept, workspace, spec, users) as tree:
                return await self._with_network(workspace, namespace, entrances, quota, tree)
        finally:
            tools.table.drop_group(self.tag, tools.groups)

    async def _with_network(
        self,
        workspace: Path,
        namespace: UserNamespace | None,
        entrances: Sequence[Path],
        quota: int | None,
        tree: OpenTree | None,
    ) -> RunReport:
        """Build and run it, with the network of its environment."""
        order, builder = self.order, self._tools.builder
        if self._reward is not None:
            order = self._reward.announced(order, builder.home(workspace))
        door = self._open_door()
        try:
            invocation = builder.build(
                order, workspace, self.tag, namespace, entrances, quota, door, tree
            )
        except BaseException:
            if door is not None:
                await door.close()
            raise
        tools = self._tools
        command = FreshCommand(self.tag, invocation, tools.table, tools.launcher, namespace, door)
        return await self._capture(command, workspace)

    def _open_door(self) -> EgressDoor | None:
        if environment_of(self.order).network != NETWORK_EGRESS:
            return None
        if self._tools.builder.sandbox is None:
            raise EgressUnavailable("it has no sandbox, so nothing would enforce it")
        return self._tools.egress.open(self.order)

    async def _capture(self, command: Command, folder: Path) -> RunReport:
        """Start and supervise it, and keep its output."""
        # A disk of its own ends its growth before the watch does.
        own_disk = self._tools.workspaces.disk_bytes(folder)
        declared = own_disk or environment_of(self.order).disk_bytes
        disk = self._tools.disk
        captures: Sequence[Capture] = ()
        self._command = command
        left = 0
        try:
            limits = OutputLimits.declared(self.order.action.exec)
            captures = stdout, stderr = await command.captures(limits)
            disk.begin(
                folder, declared, self.stop, processes=self._processes, has_disk=bool(own_disk)
            )
            await self._start(command)
            with self._tools.outputs.of_run(self.order, stdout.kept, stderr.kept):
                ending = await self._supervise()
            code = await self._exit_code()
            result = exec_result(code, stdout, stderr)
            patience = self._tools.patience_seconds
            settled, left = await command.settle(patience, stopped=self._stopping is not None)
            return self._report(result, ending.then(settled), left)
        finally:
            self._watch_disk(command, folder, left)
            for capture in captures:
                capture.close()
            await command.close()

    def _watch_disk(self, command: Command, folder: Path, left: int) -> None:
        """Measure its environment once more, and further while it has background processes."""
        disk = self._tools.disk
        disk.end(folder)
        if left and isinstance(command, KeptCommand):
            environment = command.environment
            declared = environment_of(self.order).disk_bytes

            def stop(_: Outcome, reason: str) -> None:
                ended = environment.end_background()
                _log.warning("ended %d background processes of %s: %s", ended, folder.name, reason)

            has_disk = bool(self._tools.workspaces.disk_bytes(folder))
            disk.begin(folder, declared, stop, processes=environment.pids, has_disk=has_disk)

    def _processes(self) -> list[int]:
        """Find its processes: by their group, which they cannot leave, or by their tag."""
        if self._memory is not None:
            return self._memory.processes()
        return self._tools.table.find(self.tag)

    def _limit_memory(self, name: str) -> None:
        """Make the memory group of its environment. Raises OSError."""
        if self._tools.memory is not None:
            self._memory = self._tools.memory.of(name, self.memory_limit_bytes)
            self._kills = watch_kills(self._memory)

    def _enter_groups(self) -> list[Path]:
        """Make the group of its processes; return the entrances of its control groups. Raises OSError."""
        entrances = [] if self._memory is None else [self._memory.entrance]
        if self._tools.groups is not None:
            memory = None if self._memory is None else self._memory.entrance.parent
            group = self._tools.groups.of(self.tag, memory)
            self._tools.table.hold_group(self.tag, group)
            entrances.append(group.entrance)
        return entrances

    async def _start(self, command: Command) -> None:
        self._pin()
        program, self._spawned_at = await command.start(lambda: self._stopping is not None)
        self._program = program
        self._tools.table.enter(self.tag, program.pid)
        self._pin()
        program.on_end(self._on_exit)

    def _on_exit(self) -> None:
        self._ended_at = time.monotonic()
        self._tools.table.leave(self.tag)
        self._exited.set()
        self._woken.set()

    async def _supervise(self) -> Termination:
        """Wait until the command ends or is stopped; then end its processes."""
        self._started()
        timer = self._set_timer(self.order.action.timeout_seconds)
        try:
            await self._woken.wait()
        finally:
            if timer is not None:
                timer.cancel()
        return Termination() if self._exited.is_set() else await self._terminate()

    def _set_timer(self, timeout_seconds: float | None) -> asyncio.TimerHandle | None:
        """Measure the time-out from the spawn, not from now (I9)."""
        if timeout_seconds is None:
            return None
        remaining = self._spawned_at + timeout_seconds - time.monotonic()
        reason = f"execution passed timeout_seconds = {timeout_seconds:g}"
        loop = asyncio.get_running_loop()
        return loop.call_later(max(0.0, remaining), self.stop, Outcome.TIMEOUT, reason)

    async def _terminate(self) -> Termination:
        tools = self._tools
        asked = tools.table.ask_to_end(self.tag)
        await self._wait_for_exit(tools.grace_seconds)
        ending = await tools.table.end(self.tag, tools.patience_seconds, asked)
        if not ending.remaining:
            await self._wait_for_exit(tools.patience_seconds)
        return ending

    async def _abandon(self) -> None:
        """End a command that the driver failed to supervise."""
        if self._program is None:
            return
        try:
            await self._tools.table.end(self.tag, self._tools.patience_seconds)
        except OSError:  # no descriptor is left to search the process list
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._program.pid, signal.SIGKILL)
        await self._program.wait()

    async def _wait_for_exit(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._exited.wait()

    async def _discard(self, workspace: Path) -> None:
        try:
            self._tools.workspaces.remove_empty(workspace)
        except OSError:
            try:
                await asyncio.to_thread(self._tools.workspaces.remove, workspace)
            except OSError as error:  # the next start of the driver tries again
                _log.warning("workspace %s could not be deleted: %s", workspace, error)

    async def _exit_code(self) -> int | None:
        if self._program is None or not self._exited.is_set():
            return None
        return await self._program.wait()

    def _execution_seconds(self) -> float:
        if self._program is None:
            return 0.0
        return (self._ended_at or time.monotonic()) - self._spawned_at

    def _report(self, result: ExecResult, ending: Termination, background: int) -> RunReport:
        outcome, reason = self._stopping or (Outcome.COMPLETED, None)
        notes = [reason] if reason else []
        killed = self._kills()
        if killed:
            notes.append(killed)
            if self._stopping is None and result.exit_code != 0:
                outcome = Outcome.OOM_KILLED
        if ending.ended:
            left = "" if self._stopping else " it left behind"
            noun = "process" if ending.ended == 1 else "processes"
            notes.append(f"ended {ending.ended} {noun}{left}")
        if ending.remaining:
            notes.append(f"could not end {', '.join(ending.remaining)}")
        if background:
            noun = "process" if background == 1 else "processes"
            notes.append(f"left {background} {noun} in the background")
        return RunReport(
            outcome, self._execution_seconds(), result, detail="; ".join(notes) or None
        )
