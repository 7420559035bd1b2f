"""A worker beside a fake port; its handler processes are tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from domain.rollouts import Rollout, RolloutResult
from rollout.handlers.registry import BUILT_IN
from rollout.ports import Record
from rollout.testing.fake_port import FakePort
from rollout.testing.local_handlers import local_pool, running
from rollout.worker.worker import RolloutWorker
from tests.unit.rollout import odd_handlers
from tests.unit.rollout.builders import ENVIRONMENT, a_rollout


class Bench:
    """A port, and workers on it one after the other."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.port = FakePort()
        self.time = 0.0
        self._stack = stack
        self._names = 0
        self._pauses = asyncio.Event()

    def now(self) -> float:
        """Return the worker's clock: it stands still unless a test moves it."""
        return self.time

    async def start(self, processes: int = 1, **options: Any) -> RolloutWorker:
        """Run a worker until the test ends."""
        given = {"now": self.now, "pause": self.pause, **options}
        worker = RolloutWorker(self.port, places(), 100, pool=local_pool(processes), **given)
        return await self.run(worker)

    async def run(self, worker: RolloutWorker) -> RolloutWorker:
        """Run a worker until the test ends."""
        return await self._stack.enter_async_context(running(worker))

    async def stop(self, worker: RolloutWorker) -> None:
        """Stop a worker."""
        await worker.stop()

    async def pause(self, seconds: float) -> None:
        """Let the clock pass so much time at once."""
        self.time += seconds
        self._pauses.set()
        await asyncio.sleep(0)

    async def paused(self) -> None:
        """Wait until the worker waits for something that is not an action."""
        async with asyncio.timeout(60):
            await self._pauses.wait()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds that the event loop works on."""
        async with asyncio.timeout(60):
            while not holds():
                await asyncio.sleep(0)

    def submit(self, handler: str = "noop", **members: Any) -> Rollout:
        """Submit a rollout with an environment."""
        request = {"environment": ENVIRONMENT} | members.pop("request", {})
        self._names += 1
        rollout = a_rollout(f"rol_{self._names}", handler=handler, **members)
        self.port.submit_rollout(rollout, **request)
        return rollout

    async def result(self, rollout: Rollout) -> RolloutResult:
        """Return the end of a rollout."""
        async with asyncio.timeout(60):
            return await self.port.result(rollout.id)


def places() -> dict[str, str]:
    """Return the handlers of tests, and the built-in ones."""
    found = [each for each in vars(odd_handlers).values() if isinstance(each, type)]
    odd = {each.__name__: f"{odd_handlers.__name__}:{each.__name__}" for each in found}
    return {**BUILT_IN, **odd}


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack:
        yield Bench(stack)


@pytest.fixture(autouse=True)
def nothing_is_reached() -> None:
    """Forget where the handlers of earlier tests got."""
    odd_handlers.reached.clear()
    odd_handlers.released.clear()


async def handler_reached(rollout: Rollout) -> None:
    """Wait until the handler of a rollout got where it says so."""
    async with asyncio.timeout(60):
        await odd_handlers.reached.setdefault(rollout.id, asyncio.Event()).wait()


def kinds(records: Sequence[Record]) -> list[str]:
    """Return the kinds of records."""
    return [record.kind for record in records]
