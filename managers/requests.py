"""The frame of drivers that make one request per order, many at a time, in the node's event loop.

Theory of operation. An order is one attempt, and a `Work` of its own that nothing cancels but its
own stop. Whether it is made again is the core's decision. A request that must not be made twice is
marked on disk before its first byte goes out, so a worker that died in between does not repeat it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from domain.action import Kind, Outcome
from domain.allocation import Allocation
from domain.errors import InvalidRequest
from domain.ids import ActionId, TrajectoryKey
from domain.ports import Leftover, RunOrder, RunReport
from managers.marks import MarkLog, SharedMarks


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


@dataclass
class _Running:
    order: RunOrder
    task: asyncio.Task[RunReport]
    stopped: asyncio.Future[tuple[Outcome, str]]


class RequestDriver(ABC):
    """Attends orders from their start to their report; subclasses say what an attempt is."""

    kinds = frozenset({Kind.CALL})
    isolation = "none"

    def __init__(self, directory: Path) -> None:
        """``directory`` keeps the starting marks."""
        self._directory = directory
        self._running: dict[ActionId, _Running] = {}

    @abstractmethod
    def begin(self, order: RunOrder, started: Callable[[], None]) -> Work:
        """Return the attempt. Raises InvalidRequest when there can be none."""

    async def open(self) -> list[Leftover]:
        """Return which requests a predecessor may have made without a report."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        log = MarkLog(self._directory / "marks.log")
        left = [mark.rpartition("#") for mark in log.open()]
        self._marks, self._forgotten = SharedMarks(log), set[str]()
        return [Leftover(ActionId(name), int(attempt), ended=False) for name, _, attempt in left]

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
        while (known := self._running.get(order.id)) and known.order.mark != order.mark:
            await asyncio.wait([known.task])
        if known is None:
            stopped = asyncio.get_running_loop().create_future()
            task = asyncio.create_task(self._attend(order, started, stopped))
            known = self._running[order.id] = _Running(order, task, stopped)
            task.add_done_callback(lambda _: self._leave(order))
        try:
            return await asyncio.shield(known.task)
        except asyncio.CancelledError:
            self.stop(order.id, Outcome.CANCELLED, "the node worker gave it up")
            await asyncio.wait([known.task])
            raise

    async def _attend(
        self,
        order: RunOrder,
        started: Callable[[], None],
        stopped: asyncio.Future[tuple[Outcome, str]],
    ) -> RunReport:
        """Make the attempt, or end it when it is stopped: its connection is closed then."""
        try:
            work = self.begin(order, started)
        except InvalidRequest as error:
            return RunReport(Outcome.INFRA_FAILED, 0.0, detail=str(error))
        making = asyncio.ensure_future(work.run())
        either: set[asyncio.Future[Any]] = {making, stopped}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if making.done():
            return making.result()
        making.cancel()
        await asyncio.wait({making})
        if not making.cancelled():
            return making.result()
        outcome, reason = stopped.result()
        return work.stopped(
            RunReport(outcome, work.seconds(), detail=reason, never_started=not work.sent)
        )

    def stop(self, action_id: ActionId, outcome: Outcome, reason: str) -> None:
        """End a request; its report carries ``outcome`` unless the answer was there before."""
        known = self._running.get(action_id)
        if known is not None and not known.stopped.done():
            known.stopped.set_result((outcome, reason))

    def resize(  # noqa: B027 - there is nothing to do, here or below
        self, action_id: ActionId, attempt: int, allocation: Allocation
    ) -> None:
        """Do nothing: a request is what it is."""

    def forget(self, marks: Sequence[str]) -> None:
        """These attempts will not be ordered again: their marks may go, once they have ended."""
        running = {known.order.mark for known in self._running.values()}
        self._forgotten |= running & set(marks)
        self._marks.remove([mark for mark in marks if mark not in running])

    def _leave(self, order: RunOrder) -> None:
        self._running.pop(order.id, None)
        if order.mark in self._forgotten:
            self._forgotten.discard(order.mark)
            self._marks.remove([order.mark])

    async def remove_environment(self, trajectory: TrajectoryKey) -> None:
        """End the requests of a trajectory."""
        mine = [k for k in self._running.values() if k.order.action.trajectory_key == trajectory]
        await self._end(mine, Outcome.CANCELLED, "its trajectory is over")

    async def put_file(self, trajectory: TrajectoryKey, path: str, content: bytes) -> None:
        """Refuse: requests have no environment."""
        raise InvalidRequest("calls have no files", pointer="/path")

    async def get_file(self, trajectory: TrajectoryKey, path: str, limit_bytes: int) -> bytes:
        """Refuse: requests have no environment."""
        raise InvalidRequest("calls have no files", pointer="/path")

    async def close(self) -> None:
        """End all requests."""
        reason = "the node worker is shutting down"
        await self._end(list(self._running.values()), Outcome.INFRA_FAILED, reason)
        self._marks.close()

    async def _end(self, chosen: Sequence[_Running], outcome: Outcome, reason: str) -> None:
        for known in chosen:
            self.stop(known.order.id, outcome, reason)
        if chosen:
            await asyncio.wait([known.task for known in chosen])
