"""Child processes that are restarted when they die, and that never outlive this process."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import time
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tangram_web.lib import oom_scores


@dataclass
class Backoff:
    """Pauses before restarts: none after a healthy run, doubled at each early death."""

    first_seconds: float = 0.5
    most_seconds: float = 30.0
    #: A child that ran for so long was healthy; it starts again at once.
    healthy_seconds: float = 60.0
    #: Early deaths in a row.
    deaths: int = 0

    def after(self, lived_seconds: float) -> float:
        """Return the pause after a run of ``lived_seconds``."""
        if lived_seconds >= self.healthy_seconds:
            self.deaths = 0
            return 0.0
        self.deaths += 1
        # The exponent is limited: 2.0 ** 1100 is an error.
        return min(self.first_seconds * 2.0 ** min(self.deaths - 1, 32), self.most_seconds)


_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)

Announce = Callable[[str], None]
Place = Callable[["Program", int], None]
Pause = Callable[[float], Awaitable[object]]


@dataclass(frozen=True)
class Program:
    """A command, its environment, and its grace period at the end."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    grace_seconds: float = 5.0
    #: Rank among the processes to kill when the machine has no memory left (`tangram_web.lib.oom_scores`).
    oom_score: int = oom_scores.TANGRAM
    #: CPUs that a node worker starts on; empty for other parts, which start on those of the supervisor.
    cpus: tuple[int, ...] = ()


async def spawn(program: Program, cwd: Path, stdout: int, stderr: int = STDOUT) -> Process:
    """Start ``program`` in a process group of its own; the kernel kills it when we die.

    It gets its score where that is permitted; `tangram doctor` says where not.
    """
    parent = os.getpid()

    def die_with_parent() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before the line above took effect
            os._exit(1)
        if program.cpus:
            os.sched_setaffinity(0, program.cpus)

    process = await asyncio.create_subprocess_exec(
        *program.command,
        cwd=cwd,
        env={**os.environ, **program.environment},
        stdin=DEVNULL,
        stdout=stdout,
        stderr=stderr,
        # A node worker leads a session, which has a weight of its own (`part_placement`).
        process_group=None if program.cpus else 0,
        start_new_session=bool(program.cpus),
        preexec_fn=die_with_parent,
    )
    oom_scores.set_score(program.oom_score, process.pid)
    return process


async def end(process: Process, grace_seconds: float) -> None:
    """Send SIGTERM; after the grace period, kill the process and all of its group."""
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
        # It may have been reaped, with its code on the way to us.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


class Child:
    """One program, restarted whenever it ends without `stop`."""

    def __init__(
        self,
        program: Program,
        *,
        cwd: Path,
        log: Path,
        announce: Announce,
        pause: Pause = asyncio.sleep,
        place: Place | None = None,
    ) -> None:
        self.program = program
        self.log = log
        self._cwd = cwd
        self._announce = announce
        self._pause = pause
        self._place = place
        self._backoff = Backoff()
        self._process: Process | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._stopping = False
        self._hurried = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """Process id, while it runs."""
        process = self._process
        return None if process is None or process.returncode is not None else process.pid

    @property
    def deaths(self) -> int:
        """Early deaths in a row."""
        return self._backoff.deaths

    async def start(self) -> None:
        """Start the program, and restart it whenever it ends. Raises OSError."""
        process = await self._spawn()
        self._watcher = asyncio.create_task(self._keep(process), name=f"keep {self.program.name}")

    async def stop(self) -> None:
        """End the program without a restart; returns when it has ended."""
        self._stopping = True
        if self._process is not None:
            await end(self._process, self.program.grace_seconds)
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.wait({self._watcher})

    def hurry(self) -> None:
        """End the pause before a restart: the cause of the last death may be gone."""
        self._hurried.set()

    def kill(self) -> None:
        """Kill it now; a waiting `stop` returns."""
        self._stopping = True
        if self._process is not None:
            kill(self._process)

    async def _spawn(self) -> Process:
        with self.log.open("ab") as log:
            self._process = await spawn(self.program, self._cwd, log.fileno())
        if self._place is not None:
            self._place(self.program, self._process.pid)
        return self._process

    async def _keep(self, process: Process) -> None:
        while True:
            began = time.monotonic()
            code = await process.wait()
            if self._stopping:
                return
            process = await self._restart(describe_exit(code), time.monotonic() - began)

    async def _restart(self, end: str, lived_seconds: float) -> Process:
        while True:
            delay = self._backoff.after(lived_seconds)
            self._announce(
                f"{self.program.name} ended ({end}), starts again in {delay:g} s; see {self.log}"
            )
            self._hurried.clear()
            await self._pause_unless_hurried(delay)
            try:
                return await self._spawn()
            except OSError as error:  # no memory or no process numbers left, for now
                end, lived_seconds = str(error), 0.0

    async def _pause_unless_hurried(self, seconds: float) -> None:
        pause = asyncio.ensure_future(self._pause(seconds))
        hurried = asyncio.ensure_future(self._hurried.wait())
        try:
            await asyncio.wait({pause, hurried}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            pause.cancel()
            hurried.cancel()


def describe_exit(code: int) -> str:
    """Return an exit code in words: ``exit code 3``, ``killed by SIGTERM``."""
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
