"""The frame of drivers that make one request per order, many at a time, in the node's event loop.

Theory of operation. An order is one attempt, and a `Work` of its own that nothing cancels but its
own stop. Whether it is made again is the core's decision. A request that must not be made twice is
marked on disk before its first byte goes out, so a worker that died in between does not repeat it.
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
from managers.common.order_runs import SHUTTING_DOWN, Runs, StoppableRun
from managers.common.start_log import MarkLog, MarkThread, leftover


class Work(Protocol):
    """One attempt."""

    @property
    def sent(self) -> bool:
        """The first byte of the request may have gone out."""

    def seconds(self) -> float:
        """Return how long the request has been under way; 0 before."""

    async def run(self) -> RunReport:
        """Make the attempt. Raises nothing but cancellation."""

    def stopped(self, report: RunReport) -> RunReport:
        """Complete the report of an attempt that was stopped."""


class _Request(StoppableRun):
    """An order from its start to its report."""

    def __init__(self, order: RunOrder, begin: Callable[[], Work]) -> None:
        super().__init__(order)
        self._begin = begin

    def resize(self, allocation: Allocation) -> None:
        """Do nothing: a request is what it is."""

    async def live(self) -> RunReport:
        """Make the attempt, or end it when it is stopped: its connection is closed then."""
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
    """Attends orders from their start to their report; subclasses say what an attempt is."""

    kinds = frozenset({Kind.CALL})
    isolation = "none"

    def __init__(self, directory: Path) -> None:
        """``directory`` keeps the starting marks."""
        self._directory = directory
        self._runs: Runs[_Request] = Runs(lambda marks: self._marks.remove(marks))

    @abstractmethod
    def begin(self, order: RunOrder, started: Callable[[], None]) -> Work:
        """Return the attempt. Raises InvalidRequest or NotFound when there can be none."""

    async def open(self) -> list[Leftover]:
        """Return which requests a predecessor may have made without a report."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        log = MarkLog(self._directory / "marks.log")
        left = [leftover(mark, ended=False) for mark in log.open()]
        self._marks = MarkThread(log, f"tangram-{self._directory.name}")
        return left

    def sending(
        self, order: RunOrder, started: Callable[[], None]
    ) -> Callable[[], Coroutine[Any, Any, None]]:
        """Return what is awaited before the first byte goes out."""

        async def mark() -> None:
            if not order.action.replay_safe:
                await self._marks.add(order.mark)
            started()

        return mark

    async def run(self, order: RunOrder, started: Callable[[], None]) -> RunReport:
        """Make one attempt. An order that is under way is not begun twice."""
        return await self._runs.run(
            order, lambda: _Request(order, lambda: self.begin(order, started))
        )

    def stop(self, action_id: ActionId, outcome: Outcome, reason: str) -> None:
        """End a request; its report carries ``outcome`` unless the answer was there before."""
        self._runs.stop(action_id, outcome, reason)

    def resize(  # noqa: B027 - there is nothing to do, here or below
        self, action_id: ActionId, attempt: int, allocation: Allocation
    ) -> None:
        """Do nothing: a request is what it is."""

    def forget(self, marks: Sequence[str]) -> None:
        """These attempts will not be ordered again: their marks may go, once they have ended."""
        self._runs.forget(marks)

    async def remove_environment(self, trajectory: TrajectoryKey) -> None:
        """End the requests of a trajectory."""
        await self._runs.end_of(trajectory, Outcome.CANCELLED, "its trajectory is over")

    async def put_file(self, trajectory: TrajectoryKey, path: str, content: bytes) -> None:
        """Refuse: requests have no environment."""
        raise InvalidRequest("calls have no files", pointer="/path")

    async def get_file(self, trajectory: TrajectoryKey, path: str, limit_bytes: int) -> bytes:
        """Refuse: requests have no environment."""
        raise InvalidRequest("calls have no files", pointer="/path")

    async def close(self) -> None:
        """End all requests."""
        await self._runs.end_all(SHUTTING_DOWN)
        await asyncio.to_thread(self._marks.close)
