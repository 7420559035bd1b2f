"""The thread that marks and spawns.

One thread for both, because they come in this order and both block: it takes all launches that are
waiting, writes their marks with one sync, and spawns them. It pins by setting its own affinity,
which a new process inherits; nothing runs between fork and exec, so Python may `vfork`. It lives as
long as the driver: Linux ends a sandbox when the *thread* that spawned it ends (--die-with-parent).
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from managers.common.start_log import MarkLog, MarkThread
from managers.cpu.process.command import Invocation


@dataclass(frozen=True)
class Spawned:
    """A command that runs."""

    process: subprocess.Popen[bytes]
    #: When it was spawned, on the monotonic clock.
    at: float


class Launcher:
    """Spawns invocations in the order they come."""

    def __init__(self, marks: MarkLog) -> None:
        self._marks = MarkThread(marks, "tangram-launcher")
        self._pinned: frozenset[int] = frozenset()

    def launch(
        self, invocation: Invocation, stdout: int, stderr: int, withdrawn: Callable[[], bool]
    ) -> asyncio.Future[Spawned]:
        """Mark and spawn; the future fails with what forbade it, or WithdrawnError."""
        work = partial(self._spawn, invocation, stdout, stderr)
        return self._marks.after(invocation.mark, work, withdrawn)

    def forget(self, marks: Sequence[str]) -> None:
        """Take marks back, some time."""
        self._marks.remove(marks)

    def close(self) -> None:
        """Finish what is queued, and end. Blocks."""
        self._marks.close()

    def _spawn(self, invocation: Invocation, stdout: int, stderr: int) -> Spawned:
        if invocation.cpus != self._pinned:
            os.sched_setaffinity(0, invocation.cpus)
            self._pinned = invocation.cpus
        at = time.monotonic()
        process = subprocess.Popen(
            invocation.argv,
            stdin=subprocess.DEVNULL if invocation.stdin is None else invocation.stdin,
            stdout=stdout,
            stderr=stderr,
            env=invocation.env,
            cwd=invocation.cwd,
            pass_fds=invocation.keep,
            start_new_session=True,
        )
        return Spawned(process, at)
