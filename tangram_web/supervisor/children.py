"""Child processes that are kept alive, and that never outlive us."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import time
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tangram_web.supervisor.backoff import Backoff

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)

Announce = Callable[[str], None]
Pause = Callable[[float], Awaitable[object]]


@dataclass(frozen=True)
class Program:
    """What to run, and how long it may take to end."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    grace_seconds: float = 5.0


async def spawn(program: Program, cwd: Path, stdout: int, stderr: int = STDOUT) -> Process:
    """Start ``program`` in a process group of its own; the kernel kills it when we die."""
    parent = os.getpid()

    def die_with_parent() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above took effect
            os._exit(1)

    return await asyncio.create_subprocess_exec(
        *program.command,
        cwd=cwd,
        env={**os.environ, **program.environment},
        stdin=DEVNULL,
        stdout=stdout,
        stderr=stderr,
        process_group=0,
        preexec_fn=die_with_parent,
    )


async def end(process: Process, grace_seconds: float) -> None:
    """Ask the process to end; after the grace, kill it and all of its group."""
    if process.returncode is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), grace_seconds)
    except TimeoutError:
        kill(process)
        await process.wait()


def kill(process: Process) -> None:
    """Kill the process and all of its group, at once."""
    if process.returncode is None:
        # Not reaped yet, so the number is still this child's and no stranger's.
        os.killpg(process.pid, signal.SIGKILL)


class Child:
    """One program, started again whenever it ends before it was told to."""

    def __init__(
        self,
        program: Program,
        *,
        cwd: Path,
        log: Path,
        announce: Announce,
        pause: Pause = asyncio.sleep,
    ) -> None:
        self.program = program
        self.log = log
        self._cwd = cwd
        self._announce = announce
        self._pause = pause
        self._backoff = Backoff()
        self._process: Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def pid(self) -> int | None:
        """Process id of the present life, if there is one."""
        process = self._process
        return None if process is None or process.returncode is not None else process.pid

    @property
    def deaths(self) -> int:
        """Deaths in a row, none of which followed a long life."""
        return self._backoff.deaths

    async def start(self) -> None:
        """Start the program, and from now on keep it alive. Raises OSError when it cannot."""
        process = await self._spawn()
        self._keeper = asyncio.create_task(self._keep(process), name=f"keep {self.program.name}")

    async def stop(self) -> None:
        """End the program for good; returns when it is gone."""
        self._stopping = True
        if self._process is not None:
            await end(self._process, self.program.grace_seconds)
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait({self._keeper})

    def kill(self) -> None:
        """Kill it now; a `stop` that is waiting returns."""
        self._stopping = True
        if self._process is not None:
            kill(self._process)

    async def _spawn(self) -> Process:
        with self.log.open("ab") as log:
            self._process = await spawn(self.program, self._cwd, log.fileno())
        return self._process

    async def _keep(self, process: Process) -> None:
        while True:
            began = time.monotonic()
            code = await process.wait()
            if self._stopping:
                return
            process = await self._again(describe_exit(code), time.monotonic() - began)

    async def _again(self, end: str, lived_seconds: float) -> Process:
        while True:
            delay = self._backoff.after(lived_seconds)
            self._announce(
                f"{self.program.name} ended ({end}), starts again in {delay:g} s; see {self.log}"
            )
            await self._pause(delay)
            try:
                return await self._spawn()
            except OSError as error:  # no memory or no process numbers left, for now
                end, lived_seconds = str(error), 0.0


def describe_exit(code: int) -> str:
    """Return an exit code in words: ``exit code 3``, ``killed by SIGTERM``."""
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
