"""Output of a command: read while it runs, so that the command never blocks, and kept up to its limits.

A pipe is read when data arrive, and then at intervals until it is empty: a command that prints many lines costs the worker
one read for each interval, not one for each line. What neither the limits nor a follower need is moved to
``/dev/null`` inside the kernel: a command that prints without end costs the worker almost nothing, and waits on its
pipe meanwhile.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import os
import termios
import time
from pathlib import Path
from typing import Final, Protocol

from domain.allocation import UsedResources
from domain.ports import ExecResult
from managers.cpu.kept_output import KeptOutput, OutputLimits

#: Size of a pipe as the kernel makes it, and of one whose command prints a lot.
_PIPE_BYTES: Final = 65536
_WIDE_PIPE_BYTES: Final = 2**20
#: Interval between reads, and where the command fills the pipe faster: 250 MB/s at most.
_INTERVAL_SECONDS: Final = 0.01
_SHORT_INTERVAL_SECONDS: Final = 0.004
#: A drain at the end need not read more often: other processes may still write.
_DRAIN_READS: Final = 32


class CommandOutput(Protocol):
    """One output stream of a command."""

    kept: KeptOutput

    def finish(self) -> str:
        """Read what has arrived, end the stream, and return the kept text."""

    def close(self) -> None:
        """End what follows the stream; idempotent."""


class Capture:
    """One output stream of a command, read from a new pipe or from the ``named`` pipe on disk."""

    def __init__(self, limits: OutputLimits, named: Path | str | None = None) -> None:
        self.kept = KeptOutput(limits)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._pipe_bytes = _PIPE_BYTES
        self._null = -1
        if named is None:
            self._read_end, self.write_end = os.pipe()
            os.set_blocking(self._read_end, False)
        else:
            # For writing too: it must not seem to end before its first writer opens it.
            self._read_end = os.open(named, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            self.write_end = -1
        self._loop.add_reader(self._read_end, self._arrived)

    def spawned(self) -> None:
        """Close our copy of the writing end: the command has its own."""
        os.close(self.write_end)
        self.write_end = -1

    def finish(self) -> str:
        """Read what is in the pipe already, close it, and return the kept text.

        Does not wait for its end: a process that holds the other end must not block us.
        """
        for _ in range(_DRAIN_READS):
            if self._read() <= 0:
                break
        self.close()
        return self.kept.text()

    def close(self) -> None:
        """Close all descriptors, and end what follows the stream; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._read_end >= 0:
            self._loop.remove_reader(self._read_end)
            os.close(self._read_end)
            self._read_end = -1
        if self._null >= 0:
            os.close(self._null)
            self._null = -1
        if self.write_end >= 0:
            self.spawned()
        if not self.kept.ended:
            self.kept.end()

    def _arrived(self) -> None:
        """Read, and again after an interval instead of at the next byte."""
        self._loop.remove_reader(self._read_end)
        self._tick()

    def _tick(self) -> None:
        self._timer = None
        count = self._read()
        if count < 0:  # all writers have closed it
            return
        if not count:
            self._loop.add_reader(self._read_end, self._arrived)
            return
        interval = _INTERVAL_SECONDS
        if count >= self._pipe_bytes // 4:
            interval = _SHORT_INTERVAL_SECONDS
            self._widen()
        self._timer = self._loop.call_later(interval, self._tick)

    def _read(self) -> int:
        """Take what is in the pipe; return its size, 0 for none, below 0 at the end of the stream."""
        skipped = self._skip()
        try:
            data = os.read(self._read_end, self._pipe_bytes)
        except BlockingIOError:
            return skipped
        if not data:
            return skipped or -1
        self.kept.add(data, time.time())
        return skipped + len(data)

    def _skip(self) -> int:
        """Drop what is needed neither for the text nor by a follower; return its size."""
        kept = self.kept
        if kept.room_bytes > 0:
            return 0
        waiting = array.array("i", [0])
        fcntl.ioctl(self._read_end, termios.FIONREAD, waiting)
        surplus = waiting[0] - kept.needed_bytes
        if surplus <= 0 or surplus < kept.needed_bytes:
            return 0
        if self._null < 0:
            self._null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        moved = os.splice(self._read_end, self._null, surplus, flags=os.SPLICE_F_NONBLOCK)
        kept.skip(moved)
        return moved

    def _widen(self) -> None:
        if self._pipe_bytes != _WIDE_PIPE_BYTES:
            # An administrator's limit on pipe sizes only makes it slower.
            with contextlib.suppress(OSError):
                fcntl.fcntl(self._read_end, fcntl.F_SETPIPE_SZ, _WIDE_PIPE_BYTES)
                self._pipe_bytes = _WIDE_PIPE_BYTES


def exec_result(
    exit_code: int | None,
    stdout: CommandOutput,
    stderr: CommandOutput,
    used: UsedResources | None = None,
) -> ExecResult:
    """End both streams of a command and return its result."""
    texts = stdout.finish(), stderr.finish()
    return ExecResult(
        exit_code,
        *texts,
        truncated=stdout.kept.truncated or stderr.kept.truncated,
        used=used,
        stdout_bytes=stdout.kept.seen,
        stderr_bytes=stderr.kept.seen,
    )


class BoundedOutput:
    """One output stream of a command that arrives in pieces."""

    def __init__(self, limits: OutputLimits) -> None:
        self.kept = KeptOutput(limits)

    def add(self, content: bytes) -> None:
        """Add a piece."""
        self.kept.add(content, time.time())

    def finish(self) -> str:
        """End the stream and return the kept text."""
        self.close()
        return self.kept.text()

    def close(self) -> None:
        """End what follows the stream; idempotent."""
        if not self.kept.ended:
            self.kept.end()
