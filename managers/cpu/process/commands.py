"""Commands of runs: in a sandbox of their own, or in the living environment of their trajectory.

A `ProcessRun` prepares, supervises and reports an action the same way for both:

    command.captures(limits)       its two outputs
    program = await command.start(withdrawn)
    command.resize(cpus)           while it runs
    await command.settle(…)        what it left: ended, or moved to the background
    command.close()
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol

from domain.ports import RunOrder
from managers.cpu.command_line import CannotSpawnError
from managers.cpu.egress.gateway import EgressDoor
from managers.cpu.environment.init import StartedProgram
from managers.cpu.environment.kept import KeptEnvironment
from managers.cpu.environment.protocol import CONTROL, SIGNAL_BASE, EnvironmentLost, InitCommand
from managers.cpu.kept_output import OutputLimits
from managers.cpu.output import Capture
from managers.cpu.process.invocation import ProcessInvocation
from managers.cpu.process.launcher import Launcher
from managers.cpu.process.namespaces import UserNamespace
from managers.cpu.process.priority import lower, lower_one, nice_of
from managers.cpu.process.process_groups import ProcessGroup
from managers.cpu.process.process_table import ProcessTable, Termination

#: Errors of a spawn that the user's command causes, not a lack of the machine.
_USER_ERRORS: Final = frozenset({errno.E2BIG, errno.ENAMETOOLONG})
#: Pauses before the affinity is set again after a resize: the first one, then four times longer each.
_FIRST_LOOK_SECONDS: Final = 0.005
_LAST_LOOK_SECONDS: Final = 0.5
#: A command has a session of its own after so long.
_SESSION_SECONDS: Final = 0.005
_KILLED: Final = SIGNAL_BASE + 9


class RunningProgram(Protocol):
    """A program that runs."""

    @property
    def pid(self) -> int:
        """Id on the host."""

    def on_end(self, call: Callable[[], None]) -> None:
        """Call ``call`` when it has ended."""

    async def wait(self) -> int:
        """Return its exit code."""


class SpawnedProgram:
    """A child of this worker."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    def on_end(self, call: Callable[[], None]) -> None:
        """Call ``call`` when it has ended and was waited for."""
        loop = asyncio.get_running_loop()
        handle = os.pidfd_open(self.pid)

        def on_exit() -> None:
            loop.remove_reader(handle)
            os.close(handle)
            self._process.poll()
            call()

        loop.add_reader(handle, on_exit)

    async def wait(self) -> int:
        """Return its exit code; blocks a thread if it runs."""
        code = self._process.returncode
        if code is None:
            code = await asyncio.to_thread(self._process.wait)
        return SIGNAL_BASE - code if code < 0 else code


class Command(Protocol):
    """A command of one run."""

    async def captures(self, limits: OutputLimits) -> tuple[Capture, Capture]:
        """Return its two outputs, kept within ``limits``; the caller closes them."""

    async def start(self, withdrawn: Callable[[], bool]) -> tuple[RunningProgram, float]:
        """Mark and start it; return it and the time of its start. Raises WithdrawnError and others."""

    def resize(self, cpus: frozenset[int]) -> None:
        """Move it to other cores, if it runs."""

    async def settle(self, patience_seconds: float, *, stopped: bool) -> tuple[Termination, int]:
        """Return what was ended of what it left, and how many processes stay in the background."""

    async def close(self) -> None:
        """Release what it holds."""


class FreshCommand:
    """A command in a sandbox of its own, or in none: all that it starts ends with it."""

    def __init__(
        self,
        tag: int,
        invocation: ProcessInvocation,
        table: ProcessTable,
        launcher: Launcher,
        namespace: UserNamespace | None,
        door: EgressDoor | None,
    ) -> None:
        self._tag = tag
        self._invocation = invocation
        self._table = table
        self._launcher = launcher
        self._namespace = namespace
        self._door = door
        self._outputs: tuple[Capture, Capture] | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._cpus: frozenset[int] = frozenset()

    async def captures(self, limits: OutputLimits) -> tuple[Capture, Capture]:
        """Return its outputs, through pipes that its user may open by name."""
        self._outputs = Capture(limits), Capture(limits)
        if self._namespace is not None:
            for capture in self._outputs:
                os.fchown(capture.write_end, self._namespace.uid, self._namespace.uid)
        return self._outputs

    async def start(self, withdrawn: Callable[[], bool]) -> tuple[RunningProgram, float]:
        """Spawn it."""
        assert self._outputs is not None
        stdout, stderr = self._outputs
        try:
            spawned = await self._launcher.launch(
                self._invocation, stdout.write_end, stderr.write_end, withdrawn
            )
        except OSError as error:
            if error.errno in _USER_ERRORS:
                raise CannotSpawnError(os.strerror(error.errno)) from error
            raise
        except ValueError as error:  # a character that no argument can hold
            raise CannotSpawnError(str(error)) from error
        self._invocation.close()
        stdout.spawned()
        stderr.spawned()
        if self._door is not None:
            self._door.spawned()
        return SpawnedProgram(spawned.process), spawned.at

    def resize(self, cpus: frozenset[int]) -> None:
        """Pin its processes, repeatedly: a child that is being forked keeps the affinity of its parent.

        It is listed only when it is complete, which takes a sandbox with its namespaces a while.
        """
        self._cpus = cpus
        self._pin(_FIRST_LOOK_SECONDS)

    def _pin(self, later_seconds: float) -> None:
        self._table.pin(self._tag, self._cpus)
        if self._looking is not None:
            self._looking.cancel()
        if later_seconds <= _LAST_LOOK_SECONDS:
            loop = asyncio.get_running_loop()
            self._looking = loop.call_later(later_seconds, self._pin, 4 * later_seconds)

    async def settle(self, patience_seconds: float, *, stopped: bool) -> tuple[Termination, int]:
        """End what it left."""
        if not stopped and self._table.left_behind(self._tag):
            return await self._table.end(self._tag, patience_seconds), 0
        return Termination(), 0

    async def close(self) -> None:
        """Close its descriptors and its network, and delete its files."""
        if self._looking is not None:
            self._looking.cancel()
        self._invocation.close()
        if self._invocation.folder is not None:
            await asyncio.to_thread(shutil.rmtree, self._invocation.folder, ignore_errors=True)
        if self._door is not None:
            await self._door.close()


class KeptCommand:
    """A command in a living environment: what it starts may outlive it, on the shared cores."""

    def __init__(
        self,
        order: RunOrder,
        command: InitCommand,
        environment: KeptEnvironment,
        group: ProcessGroup | None,
        launcher: Launcher,
    ) -> None:
        self._order = order
        self._command = command
        self.environment = environment
        self._group = group
        self._launcher = launcher
        self._program: StartedProgram | None = None
        self._left = 0
        number = environment.client.next_number()
        self._pipes = (f"{number}.out", f"{number}.err")
        self._stdin = f"{number}.in"
        spec = order.action.exec
        #: Standard input; None is ``/dev/null``.
        self._given = None if spec is None else spec.stdin

    async def captures(self, limits: OutputLimits) -> tuple[Capture, Capture]:
        """Return its outputs, through named pipes of the control folder."""
        control, uid = str(self.environment.control), self.environment.uid
        pipes = [f"{control}/{name}" for name in self._pipes]
        for pipe in pipes:
            os.mkfifo(pipe, 0o600)
            if uid is not None:
                os.chown(pipe, uid, uid)
        first, second = (Capture(limits, pipe) for pipe in pipes)
        return first, second

    async def start(self, withdrawn: Callable[[], bool]) -> tuple[RunningProgram, float]:
        """Let the init start it, on its cores and in its groups."""
        stdout, stderr = (f"{CONTROL}/{name}" for name in self._pipes)
        command = replace(self._command, stdout=stdout, stderr=stderr)
        if self._given is not None:
            await asyncio.to_thread(self._write_stdin, self._given)
            command = replace(command, stdin=f"{CONTROL}/{self._stdin}")
        nice = nice_of(self._order.allocation("cpu"))

        def confine(pid: int) -> None:
            if self._group is not None:
                self._group.enter(pid)
            if nice:
                lower_one(pid, nice)

        marked = self._launcher.mark(self._order.mark, withdrawn)
        try:
            program = await self.environment.start(command, confine, marked)
        except BaseException:
            marked.cancel()
            raise
        at = time.monotonic()
        self._program = program
        if nice:
            asyncio.get_running_loop().call_later(_SESSION_SECONDS, lower, program.pid, nice)
        return _Certain(program), at

    def resize(self, cpus: frozenset[int]) -> None:
        """Move it to other cores; before its start, start it there."""
        self._command = replace(self._command, cpus=cpus)
        if self._program is not None and self._program.pidfd >= 0:
            with contextlib.suppress(OSError):
                self.environment.resize(self._command.tag, cpus)

    async def settle(self, patience_seconds: float, *, stopped: bool) -> tuple[Termination, int]:
        """Move what it left to the background; what was stopped leaves nothing."""
        environment, tag = self.environment, self._command.tag
        if environment.ended:
            return Termination(), 0
        if stopped:
            environment.end_strays(tag)
        left = environment.retire(tag, self._group, self._order.id)
        self._left = 0 if stopped else len(left)
        if self._left:
            environment.background.drain(tag, environment.control, self._pipes)
            environment.record()
        return Termination(), self._left

    async def close(self) -> None:
        """Delete its pipes, unless background processes write to them."""
        control = str(self.environment.control)
        stdin = () if self._given is None else (self._stdin,)
        for name in (*stdin, *(() if self._left else self._pipes)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{control}/{name}")

    def _write_stdin(self, text: str) -> None:
        place = self.environment.control / self._stdin
        place.write_bytes(text.encode(errors="replace"))
        os.chmod(place, 0o644)


class _Certain:
    """A program of an init, whose exit code is that of SIGKILL when its environment was ended with it."""

    def __init__(self, program: StartedProgram) -> None:
        self._program = program
        self.pid = program.pid

    def on_end(self, call: Callable[[], None]) -> None:
        """Call ``call`` when it has ended."""
        self._program.on_end(call)

    async def wait(self) -> int:
        """Return its exit code."""
        try:
            return await self._program.wait()
        except EnvironmentLost:
            return _KILLED
