"""A worker with real handler processes beside a fake port."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from rollout.handlers.process_options import ProcessOptions
from rollout.worker.handler_pool import HandlerPool
from rollout.worker.process_launch import HandlerProcess
from rollout.worker.worker import RolloutWorker
from tests.unit.rollout.conftest import Bench, places

#: No machine under load holds up a process for so long.
BLOCKED_SECONDS = 60.0


class RealBench(Bench):
    """A bench whose handlers run in child processes."""

    def __init__(self, stack: AsyncExitStack) -> None:
        super().__init__(stack)
        self.programs: list[HandlerProcess] = []
        #: A handler that blocks its process for so long is ended.
        self.blocked_seconds = BLOCKED_SECONDS
        self.options = ProcessOptions()

    async def launch(self) -> HandlerProcess:
        """Start a handler process."""
        self.programs.append(HandlerProcess(self.blocked_seconds, self.options))
        return self.programs[-1]

    async def begin(self, processes: int = 1) -> RolloutWorker:
        """Run a worker until the test ends."""
        pool = HandlerPool(processes, self.launch)
        worker = RolloutWorker(self.port, places(), 1000, pool=pool, now=self.now, pause=self.pause)
        return await self.run(worker)

    def alive(self) -> list[int]:
        """Return the ids of handler processes that run."""
        return [program.process.pid for program in self.programs if _runs(program.process.pid)]


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
async def bench() -> AsyncIterator[RealBench]:
    async with AsyncExitStack() as stack:
        yield RealBench(stack)
