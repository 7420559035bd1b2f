"""Local handlers: the program of a handler process as a task in this process, for tests of handlers and workers.

It speaks to its worker over a socket pair, as a real one does, and ends when it is killed. A handler that blocks or ends its
process blocks or ends the test.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rollout.worker.handler_pool import HandlerPool
from rollout.worker.handler_process import serve
from rollout.worker.process_launch import HandlerProgram
from rollout.worker.worker import RolloutWorker


class LocalProgram:
    """A handler program in this event loop."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair()
        self._task = asyncio.ensure_future(serve(theirs))

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._task.done()

    def kill(self) -> None:
        """End it now; may be repeated."""
        self._task.cancel()

    async def end(self) -> tuple[str, int | None]:
        """Wait for its end."""
        self.kill()
        await asyncio.wait({self._task})
        return "it was ended by signal 9", None


async def launch_locally() -> HandlerProgram:
    """Start a handler program in this event loop."""
    return LocalProgram()


def local_pool(processes: int = 1) -> HandlerPool:
    """Return a pool whose processes are tasks."""
    return HandlerPool(processes, launch_locally)


@asynccontextmanager
async def running(worker: RolloutWorker) -> AsyncIterator[RolloutWorker]:
    """Run a worker meanwhile."""
    task = asyncio.ensure_future(worker.run())
    try:
        yield worker
    finally:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()
