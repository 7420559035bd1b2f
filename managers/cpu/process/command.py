"""What exactly is executed for an order: arguments and environment variables.

A command starts from nothing: no variable of the worker reaches it, so none of its secrets do. The
shell that sets its limits then becomes the command, and gives an impossible one its customary end:
127 not found, 126 not executable.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from domain.action import EnvironmentSpec, ExecSpec
from domain.allocation import Allocation
from domain.errors import InvalidRequest
from domain.ports import RunOrder
from domain.resources import MILLI
from managers.common.visible_gpus import Devices, device_files, granted_gpus
from managers.cpu.process.limits import Limits
from managers.cpu.process.process_tag import VARIABLE
from managers.cpu.process.sandbox import Sandbox
from managers.cpu.process.workspace import working_directory
from managers.cpu.worker_flags import rewritten

CANNOT_EXECUTE: Final = 126
NOT_FOUND: Final = 127
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class CannotSpawnError(Exception):
    """The command as the user wrote it cannot be spawned; its end is like a shell's."""

    def __init__(self, message: str, exit_code: int = CANNOT_EXECUTE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass
class Invocation:
    """Everything that spawning takes."""

    #: Name of the attempt (`RunOrder.mark`).
    mark: str
    argv: list[str]
    env: dict[str, str]
    cwd: Path
    cpus: frozenset[int]
    #: Standard input; None is ``/dev/null``.
    stdin: int | None = None
    #: Descriptors that the new process inherits under their numbers.
    keep: tuple[int, ...] = ()
    #: All descriptors to close once it is spawned.
    owned: list[int] = field(default_factory=list)

    def close(self) -> None:
        """Close what only the new process needs."""
        while self.owned:
            os.close(self.owned.pop())


@dataclass(frozen=True)
class CommandBuilder:
    """Turns orders into invocations on this node."""

    #: CPUs of this process; the ids of granted cores are mapped onto them.
    cpus: tuple[int, ...]
    limits: Limits
    sandbox: Sandbox | None = None
    #: The GPUs of this node that have device files.
    devices: Devices = field(default_factory=dict)

    def build(self, order: RunOrder, workspace: Path, seal: int) -> Invocation:
        """Prepare an order. Raises CannotSpawnError when the user's command is impossible."""
        spec = order.action.exec
        if spec is None or not spec.command:
            raise CannotSpawnError("the command is empty", NOT_FOUND)
        units = granted_units(order)
        _refuse_zero_bytes(spec)
        cwd, inside = _find_cwd(workspace, spec.cwd)
        base = base_variables(order, units, seal)
        # Our own names last: a declared variable must not hide whose process it is.
        home = str(workspace) if self.sandbox is None else self.sandbox.home
        alone = self.devices if self.sandbox is not None else None
        env = {"HOME": home, **base, **spec.env, **granted_gpus(order, alone), **_own_names(base)}
        command = [part.replace("{units}", str(units)) for part in spec.command]
        command = rewritten(command, units, spec.rewrite)
        command = [*_odd_variables(env), *command]
        invocation = Invocation(order.mark, [], env, cwd, self._cpus_of(order))
        if spec.stdin is not None:
            invocation.stdin = _memory_file(spec.stdin.encode(errors="replace"))
            invocation.owned.append(invocation.stdin)
        if self.sandbox is not None:
            files = device_files(order, self.devices)
            arguments = self.sandbox.arguments(workspace, inside, env, _network(order), files)
            handle = _memory_file(arguments)
            invocation.owned.append(handle)
            invocation.keep = (handle,)
            # What surrounds the sandbox must not see declared variables: LD_PRELOAD would escape.
            invocation.env, invocation.cwd = base, workspace
            command = self.sandbox.command(handle, command)
        invocation.argv = [*self.limits.prefix(seal), *command]
        return invocation

    def _cpus_of(self, order: RunOrder) -> frozenset[int]:
        granted = order.allocation("cpu")
        return frozenset(self.cpus) if granted is None else self.cpus_of(granted)

    def cpus_of(self, granted: Allocation) -> frozenset[int]:
        """Return the CPUs of this machine that stand for the granted cores."""
        known = set(self.cpus)
        return frozenset(
            core if core in known else self.cpus[core % len(self.cpus)] for core in granted.units
        ) or frozenset(self.cpus)


def granted_units(order: RunOrder) -> int:
    """Return the granted whole count of the action's key resource, else of CPU; at least 1.

    A malleable action is told its widest count: as many workers as it may ever have cores for, which
    share those it has at the moment.
    """
    wanted = order.action.key or "cpu"
    if order.action.malleable and wanted in order.action.cost:
        return max(1, order.action.cost[wanted][-1] // MILLI)
    for allocation in order.allocations:
        if wanted in (allocation.resource, allocation.resource.partition(":")[0]):
            return max(1, allocation.amount // MILLI)
    return 1


def base_variables(order: RunOrder, units: int, seal: int) -> dict[str, str]:
    """Return the variables that every command gets."""
    cores = order.allocation("cpu")
    threads = max(1, cores.amount // MILLI) if cores else 1
    return {
        "PATH": PATH,
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": str(max(threads, units) if order.action.malleable else threads),
        "TANGRAM_ACTION_ID": order.id,
        "TANGRAM_UNITS": str(units),
        VARIABLE: f"{seal:x}",
    }


def _own_names(base: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in base.items() if name.startswith("TANGRAM_")}


def _odd_variables(env: dict[str, str]) -> list[str]:
    """Return a command that sets variables which a shell drops: names that are no identifiers."""
    odd = [f"{name}={value}" for name, value in env.items() if not _IDENTIFIER.fullmatch(name)]
    return ["env", *odd] if odd else []


def _refuse_zero_bytes(spec: ExecSpec) -> None:
    # They end strings in the kernel, and separate the arguments that a sandbox reads.
    texts = (*spec.command, *spec.env, *spec.env.values(), spec.cwd or "")
    if any("\0" in text for text in texts):
        raise CannotSpawnError("a command, variable or path cannot contain a zero byte")
    for name in spec.env:
        if not name or "=" in name:
            raise CannotSpawnError(f"{name!r} cannot be the name of an environment variable")


def _find_cwd(workspace: Path, cwd: str | None) -> tuple[Path, str]:
    try:
        return working_directory(workspace, cwd)
    except InvalidRequest as error:
        raise CannotSpawnError(f"cwd: {error}") from error
    except OSError as error:
        raise CannotSpawnError(f"cwd: {cwd}: {error.strerror}") from error


def _network(order: RunOrder) -> str:
    environment = order.environment or order.action.environment or EnvironmentSpec()
    return environment.network


def _memory_file(content: bytes) -> int:
    """Return a descriptor to read ``content`` from: never blocks, leaves nothing on disk."""
    descriptor = os.memfd_create("tangram")
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
