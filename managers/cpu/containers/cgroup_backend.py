"""The direct backend: files of the container's control group, and a shell that is kept open.

An action costs two writes to grow and one read to verify, one message to the shell, one read of the
list of processes, and two writes to shrink. None waits for the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from managers.cpu.containers.cgroups import Usage
from managers.cpu.containers.environment import PIPES, CpuShare, Environment
from managers.cpu.containers.exec_backends import ContactLost, ContainerTermination, Execution
from managers.cpu.containers.invocation import ContainerInvocation
from managers.cpu.containers.settings import ContainerSettings
from managers.cpu.containers.shell import CONTROL, ShellLost, action_script
from managers.cpu.output import Capture

_FIRST_PAUSE_SECONDS: Final = 0.0005
_LONGEST_PAUSE_SECONDS: Final = 0.05
#: Longest wait for a freeze: processes that wait for a disk stop late, and are found by the next round.
_FREEZE_SECONDS: Final = 0.5
#: Processes that may be started while orphans are reaped, beyond those that there are.
_ROOM_TO_REAP: Final = 16


class CgroupBackend:
    """Runs actions without the engine."""

    name = "direct"

    def __init__(self, settings: ContainerSettings) -> None:
        self._settings = settings

    async def grow(self, environment: Environment, share: CpuShare) -> None:
        """Give a container the cores of an action, and verify them (I10)."""
        assert environment.group is not None
        environment.group.reset_peak()
        apply(environment, share)

    async def shrink(self, environment: Environment, share: CpuShare) -> None:
        """Take them back."""
        apply(environment, share)

    def resize(self, environment: Environment, share: CpuShare) -> None:
        """Change the cores of a running action."""
        with contextlib.suppress(OSError):  # a container that just ended needs no cores
            apply(environment, share)

    def usage(self, environment: Environment) -> Usage | None:
        """Return its usage so far."""
        assert environment.group is not None
        try:
            return environment.group.usage()
        except OSError:
            return None

    async def begin(self, environment: Environment, invocation: ContainerInvocation) -> Execution:
        """Open the pipes and send the command to the shell.

        Where processes outlive actions each action has pipes of its own: an earlier one's may have theirs
        open. Else none is left, and the pipes of all actions are empty.
        """
        shell = environment.shell
        assert shell is not None
        number = shell.next_number()
        stdin = environment.control / f"{number}.in"
        captures: list[Capture] = []
        own = (f"{number}.out", f"{number}.err") if environment.keeps is not None else ()
        pipes = own or PIPES
        try:
            environment.make_pipes(own)
            captures += [Capture(invocation.output, environment.control / name) for name in pipes]
            if invocation.stdin is not None:
                stdin.write_bytes(invocation.stdin)
                stdin.chmod(0o444)
            script = action_script(
                number, invocation.command, cwd=invocation.cwd, variables=invocation.variables,
                stdin="/dev/null" if invocation.stdin is None else f"{CONTROL}/{stdin.name}",
                stdout=f"{CONTROL}/{pipes[0]}", stderr=f"{CONTROL}/{pipes[1]}", prefix=environment.prefix,
            )  # fmt: skip
            answer = await shell.begin(number, script)
        except BaseException as error:
            for capture in captures:
                capture.close()
            stdin.unlink(missing_ok=True)
            _unlink(environment.control, own)
            if isinstance(error, ShellLost):
                raise ContactLost(f"the shell of its environment: {error}") from error
            raise
        execution = Execution(_translated(answer), captures[0], captures[1], own)
        if invocation.stdin is not None:
            execution.cleanups.append(lambda: stdin.unlink(missing_ok=True))
        return execution

    async def ask_to_end(self, environment: Environment) -> None:
        """Send SIGTERM to all that does not outlive the action."""
        with contextlib.suppress(OSError):
            _signal(environment.ending(), signal.SIGTERM)

    async def end(self, environment: Environment, patience_seconds: float) -> ContainerTermination:
        """Freeze, kill, thaw and look again, until only what outlives the action is left.

        A list of processes that is read while they fork may miss one, so it looks once more after the orphans are gone.
        """
        deadline = time.monotonic() + patience_seconds
        pause = _FIRST_PAUSE_SECONDS
        ended: set[int] = set()
        reaped = False
        try:
            while (others := environment.ending()) or not reaped:
                if not others:
                    if environment.ready:
                        await self._reap(environment, patience_seconds)
                    reaped = True
                    continue
                if time.monotonic() > deadline:
                    return ContainerTermination(len(ended.difference(others)), _describe(others))
                ended |= await self._kill_frozen(environment)
                reaped = False
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        except OSError:  # the container has ended, and all its processes
            return ContainerTermination(len(ended))
        return ContainerTermination(len(ended))

    async def _kill_frozen(self, environment: Environment) -> set[int]:
        """Kill all processes at one instant: none can fork, end or be replaced meanwhile."""
        group = environment.group
        assert group is not None
        deadline = time.monotonic() + _FREEZE_SECONDS
        group.freeze(True)
        try:
            # The kernel does not notify when the last one has stopped.
            while not group.is_frozen() and time.monotonic() < deadline:  # noqa: ASYNC110
                await asyncio.sleep(_FIRST_PAUSE_SECONDS)
            others = environment.ending()
            _signal(others, signal.SIGKILL)
            return set(others)
        finally:
            group.freeze(False)

    async def _reap(self, environment: Environment, patience_seconds: float) -> None:
        """Let the shell wait for the orphans that it inherited, which count as processes.

        A fork bomb may have left it without room for a child, so the limit is raised by a few meanwhile: never lifted,
        since a process of the bomb that was missed would fill the machine.
        """
        group, shell = environment.group, environment.shell
        assert group is not None
        assert shell is not None
        if group.process_count() <= 1 + len(environment.others()):
            return
        group.set_process_limit(group.process_count() + _ROOM_TO_REAP)
        try:
            with contextlib.suppress(ShellLost, TimeoutError):
                async with asyncio.timeout(patience_seconds):
                    # A shell waits for all its dead children before its latest one.
                    await shell.ask("(:)")
        finally:
            group.set_process_limit(self._settings.max_processes)


def _unlink(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        (folder / name).unlink(missing_ok=True)


def apply(environment: Environment, share: CpuShare) -> None:
    """Write a share to the container's group and verify its effective cores.

    Raises OSError when the container has ended or its effective cores differ.
    """
    group = environment.group
    assert group is not None
    if share.yields or environment.share is None or environment.share.yields:
        group.set_yielding(share.yields)
    environment.share = share
    group.set_cpus(share.cpus)
    group.set_quota(share.milli)
    effective = group.effective_cpus()
    if effective != share.cpus:
        raise OSError(
            f"{environment.name} has cores {sorted(effective)} instead of {sorted(share.cpus)}"
        )


def repair(environment: Environment) -> bool:
    """Restore the cores if they were changed; return whether they were."""
    group, share = environment.group, environment.share
    if group is None or share is None or group.effective_cpus() == share.cpus:
        return False
    environment.repairs += 1
    apply(environment, share)
    return True


def _translated(answer: asyncio.Future[int]) -> asyncio.Future[int]:
    """Return the same answer, whose failure is a ContactLost."""
    status: asyncio.Future[int] = answer.get_loop().create_future()

    def settle(_: asyncio.Future[int]) -> None:
        if status.done():
            return
        if answer.cancelled():
            status.cancel()
        elif (error := answer.exception()) is not None:
            status.set_exception(ContactLost(f"the shell of its environment: {error}"))
        else:
            status.set_result(answer.result())

    answer.add_done_callback(settle)
    # Retrieved here: the run may have ended when it fails.
    status.add_done_callback(lambda done: done.cancelled() or done.exception())
    return status


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _describe(pids: list[int]) -> str:
    names = []
    for pid in pids:
        with contextlib.suppress(OSError):
            names.append(f"process {pid} ({Path(f'/proc/{pid}/comm').read_text().strip()})")
    return ", ".join(names)
