"""Watchdog: a process that ends a leader whose pass does not end.

The loop writes the start of each pass into shared memory (under a microsecond, no system call). The watchdog
reads it, in a process of its own: code that holds the interpreter's lock stops every thread of the leader.
When a pass has run for `PASS_SECONDS`, the watchdog

1. stores in Redis at which journal entry the leader was (`HungPass`); the next leader rehearses its first
   passes if the journal still ends there, and so finds the message or the action that is the cause;
2. lets the leader write the stacks of all its threads to its log (`faulthandler`, which needs no lock);
3. kills it, and lets a standby take over at once.

A leader that is stopped (SIGSTOP, a debugger) is not ended. The watchdog ends with its leader.

    python -m scheduler.runtime.loop.watchdog FD PID        the rest is read from standard input
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import select
import signal
import struct
import subprocess
import sys
from contextlib import suppress
from time import monotonic, sleep
from typing import Any, Final, Protocol, cast

import msgspec

#: Longest pass of the core.
PASS_SECONDS: Final = 10.0
#: Period in which the watchdog looks at a pass, and in which it looks for one, as a share of the longest pass: one
#: that begins right after a look is found in time.
LOOK_SECONDS: Final = 0.25
_IDLE_SHARE: Final = 0.5
#: The leader writes its stacks within this time.
_DUMP_SECONDS: Final = 0.3
_DUMP_SIGNAL: Final = signal.SIGRTMIN + 5
#: Start of the pass by the monotonic clock (0: none), and number of its journal entry.
_PASS: Final = struct.Struct("=dQ")


class HungPass(msgspec.Struct):
    """A pass that was ended: its leader, the number of its journal entry, and the wall clock."""

    leader: str
    seq: int
    at: float


class WatchedLoop(msgspec.Struct):
    """What the watchdog has to know to store the note."""

    redis_url: str
    hung_key: str
    leader_key: str
    name: str
    pass_seconds: float = PASS_SECONDS


class PassWatch(Protocol):
    """What the loop reports."""

    def begin(self, seq: int) -> None:
        """Report that the core begins to decide on the journal entry ``seq``."""

    def end(self) -> None:
        """Report that it has decided."""

    def ensure(self) -> None:
        """Start the watchdog again if it has ended."""


class Unwatched:
    """No watchdog: loops within tests."""

    def begin(self, seq: int) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""

    def ensure(self) -> None:
        """Do nothing."""


class Watchdog:
    """The watchdog of this process; `start` it once."""

    def __init__(self, loop: WatchedLoop) -> None:
        self._loop = loop
        self._fd = os.memfd_create("tangram-pass")
        os.ftruncate(self._fd, _PASS.size)
        self._memory = mmap.mmap(self._fd, _PASS.size)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process. This process then writes the stacks of its threads on a signal."""
        with suppress(AttributeError, ValueError, OSError):  # no real stderr: a test captures it
            faulthandler.register(_DUMP_SIGNAL, all_threads=True)
        command = [sys.executable, "-m", __name__, str(self._fd), str(os.getpid())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(self._fd,))
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(msgspec.json.encode(self._loop))
            self._process.stdin.close()

    def begin(self, seq: int) -> None:
        """Report that the core begins to decide on the journal entry ``seq``."""
        _PASS.pack_into(self._memory, 0, monotonic(), seq)

    def end(self) -> None:
        """Report that it has decided."""
        _PASS.pack_into(self._memory, 0, 0.0, 0)

    def ensure(self) -> None:
        """Start the process again if it was ended."""
        if self._process is not None and self._process.poll() is not None:
            self.start()

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        self._memory.close()
        os.close(self._fd)


def watch(fd: int, pid: int, loop: WatchedLoop) -> None:
    """Return once the leader has ended, by itself or by this function."""
    memory = mmap.mmap(fd, _PASS.size)
    ended = select.poll()
    ended.register(os.pidfd_open(pid), select.POLLIN)
    counted_from, pause = 0.0, LOOK_SECONDS
    while not ended.poll(pause * 1000):
        began, seq = cast("tuple[float, int]", _PASS.unpack_from(memory))
        now = monotonic()
        pause = max(LOOK_SECONDS, loop.pass_seconds * _IDLE_SHARE) if began == 0.0 else LOOK_SECONDS
        if began == 0.0 or _is_stopped(pid):
            counted_from = now  # the time that it was stopped does not count
        elif now - max(began, counted_from) > loop.pass_seconds:
            end_leader(pid, seq, loop, now - began)
            return


def _is_stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except OSError:
        return False


def end_leader(pid: int, seq: int, loop: WatchedLoop, seconds: float) -> None:
    """Store the note, let the leader write its stacks, kill it, and resign in its place."""
    from time import time

    import redis

    sys.stderr.write(
        f"watchdog: a pass of the scheduler (journal entry {seq}) has run for {seconds:.0f} s: its process"
        f" {pid} is ended, and the next leader looks for the cause\n"
    )
    sys.stderr.flush()
    client: Any = redis.Redis.from_url(
        loop.redis_url, socket_timeout=2.0, socket_connect_timeout=2.0
    )
    with suppress(redis.RedisError):
        client.set(loop.hung_key, msgspec.json.encode(HungPass(loop.name, seq, time())))
    with suppress(ProcessLookupError):
        os.kill(pid, _DUMP_SIGNAL)
        sleep(_DUMP_SECONDS)  # the signal's handler does not answer
        os.kill(pid, signal.SIGKILL)
    with suppress(redis.RedisError):
        if client.get(loop.leader_key) == loop.name.encode():
            client.delete(loop.leader_key)  # its epoch is over with its process


def main() -> None:
    """Watch the process of the command line."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches the whole group; the leader decides
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    loop = msgspec.json.decode(sys.stdin.buffer.read(), type=WatchedLoop)
    with suppress(ProcessLookupError):  # it has ended already
        watch(int(sys.argv[1]), int(sys.argv[2]), loop)


if __name__ == "__main__":
    main()
