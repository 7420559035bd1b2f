"""Base of drivers that send one request per order, many at a time, in the node's event loop.

Theory of operation. An order is one `RequestAttempt`, which only a stop of the order cancels. The core
decides about retries. A request that must not be sent twice is marked on disk before its first byte,
so a worker that dies in between does not repeat it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol

from domain.action import Kind, Outcome
from domain.allocation import Allocation
from domain.errors import InvalidRequest, NotFound
from domain.ids import ActionId, TrajectoryKey
from domain.ports import Leftover, RunOrder, RunReport
from managers.common.order_runs import SHUTTING_DOWN, OrderRuns, StoppableRun
from managers.common.start_log import StartLog, StartLogWriter, leftover


class RequestAttempt(Protocol):
    """One attempt."""

    @property
    def sent(self) -> bool:
        """The first byte of the request may have gone out."""

    def seconds(self) -> float:
        """Return the time since the request was sent; 0 before."""

    async def run(self) -> RunReport:
        """Make the attempt. Raises nothing but cancellation."""

    def stopped(self, report: RunReport) -> RunReport:
        """Complete the report of an attempt that was stopped."""


class _Request(StoppableRun):
    """An order from its start to its report."""

    def __init__(self, order: RunOrder, begin: Callable[[], RequestAttempt]) -> None:
        super().__init__(order)
        self._begin = begin

    def resize(self, allocation: Allocation) -> None:
        """Do nothing: requests cannot be resized."""

    async def live(self) -> RunReport:
        """Make the attempt; a stop closes its connection."""
        try:
            work = self._begin()
        except (InvalidRequest, NotFound) as error:
            return RunReport(Outcome.INFRA_FAILED, 0.0, detail=str(error))
        making = asyncio.ensure_future(work.run())
        either: set[asyncio.Future[Any]] = {making, self.stopped}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if making.done():
            return making.result()
        making.cancel()
        await asyncio.wait({making})
        if not making.cancelled():
            return making.result()
        outcome, reason = self.stopped.result()
        return work.stopped(
            RunReport(outcome, work.seconds(), detail=reason, never_started=not work.sent)
        )


class RequestDriver(ABC):
    """Runs orders from their start to their report; subclasses define the attempt."""

    kinds = frozenset({Kind.CALL})
    isolation = "none"

    def __init__(self, directory: Path) -> None:
        """``directory`` keeps the start log."""
        self._directory = directory
        self._runs: OrderRuns[_Request] = OrderRuns(lambda marks: self._marks.remove(marks))

    @abstractmethod
    def begin(self, order: RunOrder, started: Callable[[], None]) -> RequestAttempt:
        """Return the attempt. Raises InvalidRequest or NotFound for an order without one."""

    async def open(self) -> list[Leftover]:
        """Return the requests that a predecessor may have sent without a report."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        log = StartLog(self._directory / "marks.log")
        left = [leftover(mark, ended=False) for mark in log.open()]
        self._marks = StartLogWriter(log, f"tangram-{self._directory.name}")
        return left

    def sending(
        self, order: RunOrder, started: Callable[[], None]
    ) -> Callable[[], Coroutine[Any, Any, None]]:
        """Return a coroutine function to await before the first byte is sent."""

        async def mark() -> None:
            if not order.action.replay_safe:
                await self._marks.add(order.mark)
            started()

        return mark

    async def run(self, order: RunOrder, started: Callable[[], None]) -> RunReport:
        """Make one attempt. An order that runs already is not run twice."""
        return await self._runs.run(
            order, lambda: _Request(order, lambda: self.begin(order, started))
        )

    def stop(self, action_id: ActionId, outcome: Outcome, reason: str) -> None:
        """Stop a request; its report carries ``outcome`` unless the answer arrived before."""
        self._runs.stop(action_id, outcome, reason)

    def resize(  # noqa: B027 - requests cannot be resized
        self, action_id: ActionId, attempt: int, allocation: Allocation
    ) -> None:
        """Do nothing: requests cannot be resized."""

    def forget(self, marks: Sequence[str]) -> None:
        """Remove the marks of attempts that are not ordered again, once these have ended."""
        self._runs.forget(marks)

    async def remove_environment(self, trajectory: TrajectoryKey) -> None:
        """Stop the requests of a trajectory."""
        await self._runs.end_of(trajectory, Outcome.CANCELLED, "its trajectory is over")

    async def put_file(self, trajectory: TrajectoryKey, path: str, content: bytes) -> None:
        """Refuse: requests have no environment."""
        raise InvalidRequest("calls have no files", pointer="/path")

    async def get_file(self, trajectory: TrajectoryKey, path: str, limit_bytes: int) -> bytes:
        """Refuse: requests have no environment."""
        raise InvalidRequest("calls have no files", pointer="/path")

    async def close(self) -> None:
        """Stop all requests."""
        await self._runs.end_all(SHUTTING_DOWN)
        await asyncio.to_thread(self._marks.close)
