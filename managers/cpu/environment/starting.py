"""Start of environments: a folder gets a sandbox with an init, at the first use of a trajectory or in advance.

    starter = EnvironmentStarter(tools)
    environment = await starter.start(folder, trajectory, spec)

    prepared = await starter.start(folder, NO_TRAJECTORY, spec)      waits for a trajectory
    folder.rename(place)
    await starter.give(prepared, place, trajectory, spec)            is its environment from now on

A prepared environment keeps the tag of its first folder: a limit of its processes, which nothing can raise. Its record
names that folder, so that the next worker recognises it. Its control groups are renamed with its folder; where the kernel
renames none (version 2), its three processes are moved to new ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from domain.action import EnvironmentSpec
from domain.confinement import NETWORK_EGRESS, NETWORK_NONE
from domain.errors import Unavailable
from domain.ids import TrajectoryKey
from managers.cpu.apptainer.starts import LOOPBACK, StartRules
from managers.cpu.environment import hidden_shell
from managers.cpu.environment.freezers import unified_freezer
from managers.cpu.environment.hidden_shell import HiddenShells
from managers.cpu.environment.init import ENTERING, InitClient, init_command
from managers.cpu.environment.kept import (
    Confinement,
    EnvironmentGroups,
    KeptEnvironment,
    make_control,
    spawn,
)
from managers.cpu.environment.kernel import find_processes
from managers.cpu.environment.protocol import CONTROL, EnvironmentLost
from managers.cpu.memory_groups import MemoryGroups, MemoryLimits
from managers.cpu.process.invocation import ResourceLimits
from managers.cpu.process.namespaces import UserNamespace
from managers.cpu.process.process_groups import ProcessGroups
from managers.cpu.process.process_table import ProcessTable
from managers.cpu.process.sandbox import Sandbox
from managers.cpu.tree.switcher import RootSwitcher
from managers.cpu.tree.trees import Trees, TreeUsers
from managers.cpu.workspaces import Workspaces

#: Key of what waits for a trajectory.
NO_TRAJECTORY: Final = TrajectoryKey("")
#: Variables of the init itself; programs get their own.
_VARIABLES: Final = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
}


_log = logging.getLogger(__name__)


class _KeptShellFails(Exception):
    """The copy of a shell that was kept does not run in this tree: its commands have replaced libraries."""


@dataclass(frozen=True)
class StoreTools:
    """Parts of the driver that environments need."""

    workspaces: Workspaces
    sandbox: Sandbox
    resources: ResourceLimits
    memory_limits: MemoryLimits
    memory: MemoryGroups | None
    groups: ProcessGroups | None
    table: ProcessTable
    confinement: Confinement
    trees: Trees
    switcher: RootSwitcher
    #: Folder of shells that inits run as.
    shells: Path
    #: Declared bytes of disk → size of the largest file.
    file_bytes: Callable[[int], int]
    #: Declared bytes of disk → size of a disk of its own.
    disk_bytes: Callable[[int], int]
    #: Called when an environment has no background processes any more.
    on_quiet: Callable[[Path], None] = lambda _: None
    #: None: environments start as they come, and have the usual loopback address alone.
    starts: StartRules | None = None


class EnvironmentStarter:
    """Starts the environments of one driver."""

    def __init__(self, tools: StoreTools) -> None:
        self._tools = tools
        self._trusts_kernel: bool | None = None
        self._shells = HiddenShells(tools.shells)

    async def start(
        self, folder: Path, trajectory: TrajectoryKey, spec: EnvironmentSpec
    ) -> KeptEnvironment:
        """Start an environment in its folder. Raises Unavailable, ImageMissing, OSError."""
        starts = self._tools.starts
        async with nullcontext() if starts is None else starts.gate(spec.image or ""):
            try:
                return await self._start(folder, trajectory, spec, with_kept=True)
            except _KeptShellFails as error:
                _log.warning(
                    "environment %s begins with a shell of its own: %s", folder.name, error
                )
                return await self._start(folder, trajectory, spec, with_kept=False)

    async def _start(
        self, folder: Path, trajectory: TrajectoryKey, spec: EnvironmentSpec, *, with_kept: bool
    ) -> KeptEnvironment:
        tools = self._tools
        namespace, control = await asyncio.to_thread(self._enter, folder)
        tag = tools.confinement.tagger.environment_tag(folder.name)
        uid = None if namespace is None else namespace.uid
        environment = KeptEnvironment(
            folder.name, trajectory, spec, folder, uid, tag, InitClient(control), EnvironmentGroups(),
            tools.confinement, on_end=self.forget,
        )  # fmt: skip
        is_kept = False
        try:
            is_kept = await asyncio.to_thread(self._launch, environment, namespace, with_kept)
            await self._settle(environment, hidden=is_kept)
            if trajectory != NO_TRAJECTORY:
                environment.record()
        except BaseException as error:
            await self._abandon(environment)
            if isinstance(error, EnvironmentLost):
                if is_kept:
                    raise _KeptShellFails(str(error)) from error
                raise Unavailable(f"the environment could not be started: {error}") from error
            raise
        finally:
            if namespace is not None and tools.sandbox.families is not None:
                tools.sandbox.families.leave(namespace)
        return environment

    def _enter(self, folder: Path) -> tuple[UserNamespace | None, Path]:
        """Return the user namespace of a folder, and its new control folder."""
        families = self._tools.sandbox.families
        namespace = None if families is None else families.enter(folder)
        try:
            return namespace, make_control(folder, None if namespace is None else namespace.uid)
        except BaseException:
            if namespace is not None and families is not None:
                families.leave(namespace)
            raise

    def _launch(
        self, environment: KeptEnvironment, namespace: UserNamespace | None, with_kept: bool
    ) -> bool:
        """Make its groups and its mount, and spawn its sandbox; return whether its init is a kept copy."""
        environment.limits = self.limit(environment.name, environment.spec)
        self._open_tree(environment, namespace)
        is_kept = with_kept and self._shells.give(_lowest_of(environment), environment.control)
        shell = f"{CONTROL}/{hidden_shell.NAME}" if is_kept else "/bin/sh"
        environment.outer = self._spawn(environment, namespace, init_command((shell,)))
        return is_kept

    async def _settle(self, environment: KeptEnvironment, *, hidden: bool) -> None:
        """Find the processes of a new sandbox, hide its init and confine them. Raises EnvironmentLost, OSError."""
        assert environment.outer is not None
        client, outer = environment.client, environment.outer
        self._tools.table.enter(environment.tag, outer.pid)
        await _before_end(client.greet(), outer.pid)
        environment.watch(*find_processes(outer.pid))
        if not hidden and await client.hide():
            self._shells.keep(_lowest_of(environment), environment.control)
        cores = environment.limits.cores
        if cores is None or environment.pid not in cores.resting():
            # A move between sets waits for the kernel, some milliseconds.
            await asyncio.to_thread(self._enter_cores, environment)
        await self._learn(environment)

    def furnish(self, folder: Path, spec: EnvironmentSpec) -> None:
        """Give a folder its lowest tree before its start. Blocks. Raises ImageMissing, OSError."""
        families = self._tools.sandbox.families
        namespace = None if families is None else families.enter(folder)
        try:
            users = None if namespace is None else TreeUsers(namespace.uid, namespace.handle)
            self._tools.trees.ensure(folder, spec, users)
        finally:
            if namespace is not None and families is not None:
                families.leave(namespace)

    def release(self, name: str) -> None:
        """Remove the group of an ended environment whose folder is deleted."""
        if self._tools.memory is not None:
            self._tools.memory.remove(name)

    def fits(self, spec: EnvironmentSpec) -> bool:
        """Return whether a prepared environment can become one with this spec."""
        largest = self._tools.file_bytes
        alone = spec.network in (NETWORK_NONE, NETWORK_EGRESS)
        return alone and largest(spec.disk_bytes) == largest(0)

    async def give(
        self,
        environment: KeptEnvironment,
        folder: Path,
        trajectory: TrajectoryKey,
        spec: EnvironmentSpec,
    ) -> None:
        """Make a prepared environment that of a trajectory; its folder is at ``folder`` now. Raises OSError."""
        former = environment.name
        environment.become(folder, trajectory, spec)
        # Its groups may be changed by the kernel at the same time, which takes some milliseconds.
        environment.limits = await asyncio.to_thread(self._rename_groups, environment, former)
        environment.record()

    def limit(self, name: str, spec: EnvironmentSpec) -> EnvironmentGroups:
        """Return the control groups of an environment, made if missing. Raises OSError."""
        tools, limits = self._tools, EnvironmentGroups()
        if tools.memory is not None:
            declared = tools.memory_limits.of_environment(spec.memory_bytes)
            limits.memory = tools.memory.of(name, declared)
        if tools.groups is not None:
            memory = None if limits.memory is None else limits.memory.entrance.parent
            limits.processes = tools.groups.environment(name, memory)
        if tools.confinement.cores is not None:
            limits.cores = tools.confinement.cores.of(name)
        if tools.confinement.freezers is not None:
            limits.freezer = tools.confinement.freezers.of(name)
        elif limits.processes is not None:
            limits.freezer = unified_freezer(limits.processes.directory)
        return limits

    def forget(self, environment: KeptEnvironment) -> None:
        """Record that the outer process of an environment has ended."""
        self._tools.table.leave(environment.tag)
        if self._tools.starts is not None:
            self._tools.starts.release(environment.tag)

    def _rename_groups(self, environment: KeptEnvironment, former: str) -> EnvironmentGroups:
        tools, name, spec = self._tools, environment.name, environment.spec
        try:
            for groups in (tools.memory, tools.groups, tools.confinement.cores):
                if groups is not None:
                    groups.rename(former, name)
        except OSError:
            return self._moved(environment, former)
        return self.limit(name, spec)

    def _moved(self, environment: KeptEnvironment, former: str) -> EnvironmentGroups:
        """Move its processes to groups with its name."""
        left, limits = environment.limits, self.limit(environment.name, environment.spec)
        for pid in environment.own_pids():
            if limits.memory is not None:
                limits.memory.enter(pid)
            if limits.processes is not None:
                limits.processes.background.enter(pid)
            if limits.cores is not None:
                limits.cores.enter(pid, acting=False)
        if left.processes is not None:
            left.processes.remove()
        if left.cores is not None:
            left.cores.remove()
        if self._tools.memory is not None:
            self._tools.memory.remove(former)
        return limits

    def _spawn(
        self,
        environment: KeptEnvironment,
        namespace: UserNamespace | None,
        init: list[str],
    ) -> subprocess.Popen[bytes]:
        tools, spec = self._tools, environment.spec
        limits, control = environment.limits, environment.control
        tree = environment.tree
        options = tools.sandbox.options(
            environment.directory, "", {}, spec.network, tree=tree, control=control
        )
        pinned = tools.confinement.cores is None
        words, handles = tools.sandbox.command(
            options, init, namespace, tree, pinned=pinned, plain=True
        )
        entrances = [each.entrance for each in (limits.memory,) if each is not None]
        if limits.processes is not None:
            entrances.append(limits.processes.background.entrance)
        if limits.cores is not None:
            entrances.append(limits.cores.entrance)
        prefix = tools.resources.prefix(
            environment.tag, entrances, tools.file_bytes(spec.disk_bytes), ENTERING
        )
        try:
            return spawn([*prefix, str(control), *words], dict(_VARIABLES), handles)
        finally:
            for handle in handles:
                os.close(handle)

    def _open_tree(self, environment: KeptEnvironment, namespace: UserNamespace | None) -> None:
        users = None if namespace is None else TreeUsers(namespace.uid, namespace.handle)
        tree = self._tools.trees.declared(environment.directory, environment.spec, users)
        if tree is not None:
            environment.tree, environment.home = tree, tree.home
            environment.variables = dict(tree.variables)
            environment.tree_record = self._tools.trees.known(environment.name)
        if self._tools.starts is not None:
            environment.variables[LOOPBACK] = self._tools.starts.address(environment.tag)

    async def _learn(self, environment: KeptEnvironment) -> None:
        """Find out once whether this worker may read the status of what runs in an environment."""
        if self._trusts_kernel is None:
            await environment.client.try_kernel()
            self._trusts_kernel = environment.client.trusts_kernel
        environment.client.trusts_kernel = self._trusts_kernel

    def _enter_cores(self, environment: KeptEnvironment) -> None:
        cores = environment.limits.cores
        for pid in environment.own_pids():
            if cores is not None:
                cores.enter(pid, acting=False)
            else:
                os.sched_setaffinity(pid, self._tools.confinement.background)

    async def _abandon(self, environment: KeptEnvironment) -> None:
        """End what a failed start has started."""
        if environment.outer is not None:
            for pid in self._tools.table.find(environment.tag):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        await environment.end("it could not be started")


def _lowest_of(environment: KeptEnvironment) -> str:
    """Return what has the shell of an environment: an image, a base, or the host."""
    if environment.tree is None:
        return "host"
    record = environment.tree_record
    return "" if record is None else record.stack.lowest


async def _before_end(answer: Awaitable[None], outer: int) -> None:
    """Wait for the answer of an init. Raises EnvironmentLost as soon as its sandbox has ended."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    handle = os.pidfd_open(outer)
    loop.add_reader(handle, ended.set)
    answering = asyncio.ensure_future(answer)
    ending = asyncio.ensure_future(ended.wait())
    try:
        await asyncio.wait({answering, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            raise EnvironmentLost("its sandbox has ended")
        await answering
    finally:
        loop.remove_reader(handle)
        os.close(handle)
        answering.cancel()
        ending.cancel()
