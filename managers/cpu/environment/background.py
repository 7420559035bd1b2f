"""Background processes of an environment: what actions left behind, and programs of sessions.

A process keeps the tag of the action or session that started it, so the list of processes names their owner
without any record of single processes. Records of tags without processes are dropped when the list is read.

The outputs of a finished action have no reader any more. Each is read and dropped here while the tag has
processes, 64 KiB at a time and 20 times a second at most: a server that logs neither ends nor takes a core.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from managers.cpu.cgroup_files import read
from managers.cpu.environment.adoption import LeftBehind
from managers.cpu.environment.kernel import inner_pid_of
from managers.cpu.environment.protocol import SESSION_OWNER, EnvironmentProcess
from managers.cpu.process.process_tag import ProcessTagger

_CHUNK_BYTES: Final = 65536
_PAUSE_SECONDS: Final = 0.05
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def seconds_since_boot() -> float:
    """Return the clock of `LeftBehind.since`, which goes on while the worker does not run."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Drain:
    """Reads a named pipe and drops what it reads."""

    def __init__(self, pipe: Path) -> None:
        """Open it. Raises OSError."""
        self._pipe = pipe
        self._handle = os.open(pipe, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._listen()

    def close(self, *, remove: bool) -> None:
        """Stop; with ``remove`` delete the pipe."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._handle)
        os.close(self._handle)
        if remove:
            self._pipe.unlink(missing_ok=True)

    def _listen(self) -> None:
        self._loop.add_reader(self._handle, self._read)

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._handle, _CHUNK_BYTES)
        self._loop.remove_reader(self._handle)
        self._timer = self._loop.call_later(_PAUSE_SECONDS, self._listen)


@dataclass
class Background:
    """Tags of an environment's background processes."""

    left: dict[int, LeftBehind] = field(default_factory=dict)
    _drains: dict[int, list[Drain]] = field(default_factory=dict)

    def add(self, tag: int, owner: str, since: float) -> None:
        """Record that processes with ``tag`` run in the background."""
        self.left.setdefault(tag, LeftBehind(owner, since))

    def drain(self, tag: int, control: Path, pipes: tuple[str, ...]) -> None:
        """Read and drop what processes with ``tag`` write to ``pipes`` of the control folder."""
        self.left[tag].pipes = pipes
        for name in pipes:
            with contextlib.suppress(OSError):
                self._drains.setdefault(tag, []).append(Drain(control / name))

    def keep(self, present: Collection[int]) -> None:
        """Drop the records of tags without processes."""
        for tag in [tag for tag in self.left if tag not in present]:
            del self.left[tag]
            for drain in self._drains.pop(tag, ()):
                drain.close(remove=True)

    def expired(self, now: float, ttl_seconds: float) -> list[int]:
        """Return the tags of actions whose processes have run in the background for longer."""
        return [
            tag for tag, left in self.left.items()
            if now - left.since > ttl_seconds and not left.owner.startswith(SESSION_OWNER)
        ]  # fmt: skip

    def close(self) -> None:
        """Stop reading."""
        for drains in self._drains.values():
            for drain in drains:
                drain.close(remove=False)
        self._drains.clear()


@dataclass(frozen=True)
class RunningProcess:
    """One process of an environment, as the kernel lists it."""

    pid: int
    command: str
    #: Seconds after the start of the machine.
    started: float
    cpu_seconds: float
    memory_bytes: int
    tag: int
    #: Its state as in proc(5).
    state: str

    def public(
        self, background: Background, acting: Mapping[int, str] | None = None
    ) -> EnvironmentProcess:
        """Return it with its owner; ``acting``: those of the commands that run, by tag."""
        left = background.left.get(self.tag)
        owner = (acting or {}).get(self.tag, "") if left is None else left.owner
        now = time.time()  # noqa: TID251 - shown to people
        boot = now - seconds_since_boot()
        return EnvironmentProcess(
            self.pid, inner_pid_of(self.pid) or 0, self.command, boot + self.started,
            self.cpu_seconds, self.memory_bytes, owner,
            background=left is not None and not left.owner.startswith(SESSION_OWNER),
        )  # fmt: skip

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless its number has been given to another process."""
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(self.pid)
            try:
                same = _read(self.pid, self.tag)
                if same is not None and same.started == self.started:
                    signal.pidfd_send_signal(handle, number)
            finally:
                os.close(handle)


def list_processes(tagger: ProcessTagger, first_pid: int, init: int) -> list[RunningProcess]:
    """Return the living processes below process 1 of an environment, without its init."""
    found = []
    for pid in _below(first_pid):
        process = None if pid == init else _read(pid, tagger.read(pid) or 0)
        if process is not None:
            found.append(process)
    return found


def _below(pid: int) -> list[int]:
    found: list[int] = []
    waiting = [pid]
    while waiting:
        of = waiting.pop()
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{of}/task"):
                with contextlib.suppress(OSError):
                    text = read(f"/proc/{of}/task/{thread}/children")
                    children = [int(child) for child in text.split()]
                    found += children
                    waiting += children
    return found


def _read(pid: int, tag: int) -> RunningProcess | None:
    try:
        text = read(f"/proc/{pid}/stat")
        line = read(f"/proc/{pid}/cmdline")
    except OSError:
        return None
    head, _, rest = text.rpartition(")")
    fields = rest.split()
    if fields[0] in "ZX":
        return None
    command = line.replace("\0", " ").strip()
    return RunningProcess(
        pid, command or head.partition("(")[2], int(fields[19]) / _TICKS,
        (int(fields[11]) + int(fields[12])) / _TICKS, int(fields[21]) * _PAGE_BYTES, tag,
        fields[0],
    )  # fmt: skip
