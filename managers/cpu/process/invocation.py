"""Invocation of an order as a process: arguments, environment variables, limits.

A command inherits no variable of the worker, so none of its secrets. A shell sets the limits and then
becomes the command (``exec``); setting them between fork and exec in Python would forbid `vfork` and
is not safe beside threads. The shell also enters the memory group of the environment
(`managers.cpu.memory_groups`), so that all processes of the command are in it, and becomes the first choice
of the kernel when the machine runs out of memory. Limits on address space or data are not used: they break
programs that reserve more than they use.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from domain.action import EnvironmentSpec, ExecSpec
from domain.allocation import Allocation
from domain.confinement import NETWORK_EGRESS
from domain.errors import InvalidRequest
from domain.ports import RunOrder
from managers.common.visible_gpus import Devices, device_files, granted_gpus
from managers.cpu.command_line import (
    EXECUTE,
    NOT_FOUND,
    CannotSpawnError,
    check_command,
    env_command,
    expanded,
    granted_units,
    thread_count,
)
from managers.cpu.egress.gateway import VARIABLES, EgressDoor
from managers.cpu.environment.protocol import InitCommand
from managers.cpu.process.namespaces import UserNamespace
from managers.cpu.process.priority import nice_of
from managers.cpu.process.process_tag import VARIABLE
from managers.cpu.process.sandbox import Sandbox, memory_file
from managers.cpu.tree.trees import OpenTree
from managers.cpu.workspaces import MOUNT, split_path, working_directory, workspace_of

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: Rank of actions among the processes to kill when the machine has no memory left: before all others.
OOM_SCORE: Final = 500
#: Control groups that a command may enter: of its memory, of its processes, and of its cores.
_GROUPS: Final = 3
_BLOCK_BYTES: Final = 512
#: The first is the tag. bash names its limit -x and that of processes -u, dash says -w and -p.
_SCRIPT: Final = (
    'ulimit -x "$1" 2>/dev/null || ulimit -w "$1" 2>/dev/null; '
    'ulimit -c 0; ulimit -n "$2" 2>/dev/null; '
    'ulimit -u "$3" 2>/dev/null || ulimit -p "$3" 2>/dev/null; '
    'ulimit -f "$4" 2>/dev/null; '
    '{ echo "$5" >/proc/self/oom_score_adj; } 2>/dev/null; '
    '{ echo 0 >"$6"; } 2>/dev/null; { echo 0 >"$7"; } 2>/dev/null; { echo 0 >"$8"; } 2>/dev/null; '
    "shift 8; "
)


@dataclass(frozen=True)
class ResourceLimits:
    """Limits of one action on resources without a ledger."""

    open_files: int = 65536
    #: Counts all processes of the worker's user; keeps a fork bomb from taking the machine.
    processes: int = 16384
    file_bytes: int = 16 * 2**30

    def prefix(
        self,
        tag: int,
        entrances: Sequence[Path] = (),
        file_bytes: int | None = None,
        then: str = "",
    ) -> list[str]:
        """Return the beginning of a command line that runs the rest tagged and limited.

        ``entrances``: files of at most three control groups, which the shell enters. No limit is above this
        process's own, which the shell could not exceed. ``file_bytes``: largest file, if less than
        that of all actions. ``then``: what the shell does last, with the rest as its arguments.
        """
        numbers = (
            tag,
            _at_most(resource.RLIMIT_NOFILE, self.open_files),
            _at_most(resource.RLIMIT_NPROC, self.processes),
            _at_most(resource.RLIMIT_FSIZE, min(file_bytes or self.file_bytes, self.file_bytes))
            // _BLOCK_BYTES,
            OOM_SCORE,
            *(*entrances, *(_GROUPS * (os.devnull,)))[:_GROUPS],
        )
        return ["/bin/sh", "-c", f"{_SCRIPT}{then}{EXECUTE}", "sh", *map(str, numbers)]


def _at_most(limit: int, wanted: int) -> int:
    _, hard = resource.getrlimit(limit)
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)


@dataclass
class ProcessInvocation:
    """Arguments of a spawn."""

    #: Name of the attempt (`RunOrder.mark`).
    mark: str
    argv: list[str]
    env: dict[str, str]
    cwd: Path
    cpus: frozenset[int]
    #: 0 for a command with cores of its own.
    nice: int = 0
    #: Standard input; None is ``/dev/null``.
    stdin: int | None = None
    #: Descriptors that the new process inherits under their numbers.
    keep: tuple[int, ...] = ()
    #: All descriptors to close once it is spawned.
    owned: list[int] = field(default_factory=list)
    #: Folder of files that its sandbox shows, deleted when the command has ended.
    folder: Path | None = None

    def close(self) -> None:
        """Close the descriptors that only the new process needs."""
        while self.owned:
            os.close(self.owned.pop())


@dataclass(frozen=True)
class CommandBuilder:
    """Builds invocations on this node."""

    #: CPUs of this process; the ids of granted cores are mapped onto them.
    cpus: tuple[int, ...]
    limits: ResourceLimits
    sandbox: Sandbox | None = None
    #: The GPUs of this node that have device files.
    devices: Devices = field(default_factory=dict)

    def build(
        self,
        order: RunOrder,
        workspace: Path,
        tag: int,
        namespace: UserNamespace | None = None,
        entrances: Sequence[Path] = (),
        file_bytes: int | None = None,
        door: EgressDoor | None = None,
        tree: OpenTree | None = None,
    ) -> ProcessInvocation:
        """Return the invocation of an order. Raises CannotSpawnError for an impossible command.

        ``namespace`` has the uids of the workspace, where the sandbox has any. ``entrance`` is the file
        of the control group that the command enters, ``file_bytes`` the size of its largest file. ``door``
        is the egress network of the command. ``tree`` is what it sees at ``/``, where it has a tree.
        """
        spec = order.action.exec
        if spec is None or not spec.command:
            raise CannotSpawnError("the command is empty", NOT_FOUND)
        units = granted_units(order)
        check_command(spec)
        cwd, inside = workspace, ""
        if tree is None:
            cwd, inside = _find_cwd(workspace_of(workspace), spec.cwd)
        base = base_variables(order, units, tag)
        home = self.home(workspace) if tree is None else tree.home
        image = {} if tree is None else tree.variables
        env = self._variables(order, base, spec, home, image, proxied=door is not None)
        command = [*env_command(env), *expanded(spec, units)]
        invocation = ProcessInvocation(order.mark, [], env, cwd, self._cpus_of(order))
        invocation.nice = nice_of(order.allocation("cpu"))
        if spec.stdin is not None:
            invocation.stdin = memory_file(spec.stdin.encode(errors="replace"))
            invocation.owned.append(invocation.stdin)
        if self.sandbox is not None:
            device_names = device_files(order, self.devices)
            network = environment_of(order).network
            mounted = _mounted_files(order)
            invocation.owned += mounted.values()
            options = self.sandbox.options(
                workspace, inside, env, network, device_names, mounted, tree
            )
            invocation.folder = self.sandbox.given(options)
            place = os.path.join(MOUNT, spec.cwd or "")
            outer = () if door is None else door.prefix
            command, handles = self.sandbox.command(options, command, namespace, tree, place, outer)
            invocation.owned += handles
            invocation.keep = (*handles, *mounted.values())
            # The process around the sandbox must not see declared variables: LD_PRELOAD would escape.
            invocation.env, invocation.cwd = base, workspace
        if door is not None:
            invocation.owned.append(door.take())
            invocation.keep = (*invocation.keep, door.handle)
        invocation.argv = [*self.limits.prefix(tag, entrances, file_bytes), *command]
        return invocation

    def inside(
        self, order: RunOrder, tag: int, home: str = MOUNT, image: Mapping[str, str] | None = None
    ) -> InitCommand:
        """Return the command of an order, as the init of its environment starts it.

        ``home`` and ``image``: home directory and variables of the environment's image. Raises CannotSpawnError
        for an impossible command.
        """
        spec = order.action.exec
        if spec is None or not spec.command:
            raise CannotSpawnError("the command is empty", NOT_FOUND)
        units = granted_units(order)
        check_command(spec)
        base = base_variables(order, units, tag)
        proxied = environment_of(order).network == NETWORK_EGRESS
        env = self._variables(order, base, spec, home, image or {}, proxied=proxied)
        cwd = os.path.join(MOUNT, spec.cwd or "")
        words = tuple(expanded(spec, units))
        return InitCommand(words, env, cwd, tag=tag, cpus=self._cpus_of(order), owner=order.id)

    def needs_own_sandbox(self, order: RunOrder) -> bool:
        """Say whether a command runs in a sandbox of its own, beside its environment.

        Rewards must not depend on processes of the agent, and device files of GPUs are those of one grant.
        """
        return order.action.reward is not None or bool(device_files(order, self.devices))

    def _variables(
        self,
        order: RunOrder,
        base: dict[str, str],
        spec: ExecSpec,
        home: str,
        image: Mapping[str, str],
        *,
        proxied: bool,
    ) -> dict[str, str]:
        # Our own names last: a declared variable must not hide the owner of a process.
        alone = self.devices if self.sandbox is not None else None
        proxy = VARIABLES if proxied else {}
        gpus = granted_gpus(order, alone)
        declared = {**image, **proxy, **spec.env, **gpus}
        return {"HOME": home, **base, **declared, **_own_names(base)}

    def home(self, workspace: Path) -> str:
        """Return the path of a workspace as its commands see it."""
        return str(workspace_of(workspace)) if self.sandbox is None else self.sandbox.home

    def _cpus_of(self, order: RunOrder) -> frozenset[int]:
        granted = order.allocation("cpu")
        return frozenset(self.cpus) if granted is None else self.cpus_of(granted)

    def cpus_of(self, granted: Allocation) -> frozenset[int]:
        """Return the CPUs of this machine for the granted cores."""
        known = set(self.cpus)
        return frozenset(
            core if core in known else self.cpus[core % len(self.cpus)] for core in granted.units
        ) or frozenset(self.cpus)


def base_variables(order: RunOrder, units: int, tag: int) -> dict[str, str]:
    """Return the variables of every command."""
    return {
        "PATH": PATH,
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": str(thread_count(order, units)),
        "TANGRAM_ACTION_ID": order.id,
        "TANGRAM_UNITS": str(units),
        VARIABLE: f"{tag:x}",
    }


def _own_names(base: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in base.items() if name.startswith("TANGRAM_")}


def _mounted_files(order: RunOrder) -> dict[str, int]:
    """Return the files that the submitter gave for the reward: path inside → descriptor to read it from."""
    rule = order.action.reward
    given = {} if rule is None else rule.files
    return {
        "/".join((MOUNT, *split_path(path))): memory_file(text.encode(errors="replace"))
        for path, text in given.items()
    }


def _find_cwd(workspace: Path, cwd: str | None) -> tuple[Path, str]:
    try:
        return working_directory(workspace, cwd)
    except InvalidRequest as error:
        raise CannotSpawnError(f"cwd: {error}") from error
    except OSError as error:
        raise CannotSpawnError(f"cwd: {cwd}: {error.strerror}") from error


def environment_of(order: RunOrder) -> EnvironmentSpec:
    """Return the declared environment of an order, or the default one."""
    return order.environment or order.action.environment or EnvironmentSpec()
