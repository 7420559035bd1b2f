"""The thread that marks and spawns.

One thread for both, because they come in this order and both block: it takes all launches that are
waiting, writes their marks with one sync, and spawns them. It pins by setting its own affinity,
which a new process inherits; nothing runs between fork and exec, so Python may `vfork`. It lives as
long as the driver: Linux ends a sandbox when the *thread* that spawned it ends (--die-with-parent).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from managers.cpu.process.command import Invocation
from managers.marks import MarkLog

_log = logging.getLogger(__name__)


class WithdrawnError(Exception):
    """The launch was not wanted any more when its turn came; nothing was spawned."""


@dataclass(frozen=True)
class Spawned:
    """A command that runs."""

    process: subprocess.Popen[bytes]
    #: When it was spawned, on the monotonic clock.
    at: float


@dataclass(frozen=True)
class _Launch:
    invocation: Invocation
    stdout: int
    stderr: int
    withdrawn: Callable[[], bool]
    future: asyncio.Future[Spawned]


class Launcher:
    """Spawns invocations in the order they come."""

    def __init__(self, marks: MarkLog) -> None:
        self._marks = marks
        self._queue: queue.SimpleQueue[_Launch | Sequence[str] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="tangram-launcher", daemon=True)
        self._pinned: frozenset[int] = frozenset()

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def launch(
        self, invocation: Invocation, stdout: int, stderr: int, withdrawn: Callable[[], bool]
    ) -> asyncio.Future[Spawned]:
        """Mark and spawn; the future fails with what forbade it, or WithdrawnError."""
        future: asyncio.Future[Spawned] = asyncio.get_running_loop().create_future()
        self._queue.put(_Launch(invocation, stdout, stderr, withdrawn, future))
        return future

    def forget(self, marks: Sequence[str]) -> None:
        """Take marks back, some time."""
        self._queue.put(tuple(marks))

    def close(self) -> None:
        """Finish what is queued, and end. Blocks."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
        self._marks.close()

    def _work(self) -> None:
        while True:
            batch = [self._queue.get()]
            with contextlib.suppress(queue.Empty):
                while True:
                    batch.append(self._queue.get_nowait())
            self._launch_all([job for job in batch if isinstance(job, _Launch)])
            self._forget([mark for job in batch if isinstance(job, tuple) for mark in job])
            if None in batch:
                return

    def _launch_all(self, launches: list[_Launch]) -> None:
        wanted = []
        for launch in launches:
            if launch.withdrawn():
                _settle(launch.future, WithdrawnError())
            else:
                wanted.append(launch)
        if not wanted:
            return
        try:
            self._marks.add(launch.invocation.mark for launch in wanted)
        except Exception as error:  # a thread that dies would leave every later launch waiting
            for launch in wanted:
                _settle(launch.future, error)
            return
        for launch in wanted:
            _settle(launch.future, self._spawn(launch))

    def _spawn(self, launch: _Launch) -> Spawned | Exception:
        invocation = launch.invocation
        try:
            if invocation.cpus != self._pinned:
                os.sched_setaffinity(0, invocation.cpus)
                self._pinned = invocation.cpus
            at = time.monotonic()
            process = subprocess.Popen(
                invocation.argv,
                stdin=subprocess.DEVNULL if invocation.stdin is None else invocation.stdin,
                stdout=launch.stdout,
                stderr=launch.stderr,
                env=invocation.env,
                cwd=invocation.cwd,
                pass_fds=invocation.keep,
                start_new_session=True,
            )
        except Exception as error:  # the run tells whose fault it is
            return error
        return Spawned(process, at)

    def _forget(self, marks: list[str]) -> None:
        if not marks:
            return
        try:
            self._marks.remove(marks)
        except OSError as error:
            # A mark that stays is reported once more after a restart; nothing is lost.
            _log.warning("starting marks could not be taken back: %s", error)


def _settle(future: asyncio.Future[Spawned], result: Spawned | Exception) -> None:
    def settle() -> None:
        if future.done():
            return
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)

    # The loop may have been closed while we worked; then nobody waits.
    with contextlib.suppress(RuntimeError):
        future.get_loop().call_soon_threadsafe(settle)
