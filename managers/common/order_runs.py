"""Order runs: the orders that a driver executes at the moment.

Theory of operation. An order becomes a *run*, a task of its own that is never cancelled: when its
caller is cancelled, the run is stopped and its end is awaited. So no command outlives its caller.

1. An order that runs already is not run twice; another attempt at the same action waits for the end
   of the one before.
2. A start mark (`managers.common.start_log`) that is removed while its attempt runs is kept until the
   run has ended: until then a crash must find it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from domain.action import Outcome
from domain.allocation import Allocation
from domain.ids import ActionId, TrajectoryKey
from domain.ports import RunOrder, RunReport


class OrderRun(Protocol):
    """One order being executed."""

    order: RunOrder

    def stop(self, outcome: Outcome, reason: str) -> None:
        """Stop it with ``outcome``, unless it has ended or is being stopped already."""

    def resize(self, allocation: Allocation) -> None:
        """Continue with another allocation of one resource."""

    async def live(self) -> RunReport:
        """Run the order to its end. Raises nothing; is not cancelled."""


class StoppableRun:
    """The part of a run that records the first request to stop."""

    def __init__(self, order: RunOrder) -> None:
        self.order = order
        self.stopped: asyncio.Future[tuple[Outcome, str]] = (
            asyncio.get_running_loop().create_future()
        )

    def stop(self, outcome: Outcome, reason: str) -> None:
        """Stop it with ``outcome``, unless it is being stopped already."""
        if not self.stopped.done():
            self.stopped.set_result((outcome, reason))


RunT = TypeVar("RunT", bound=OrderRun)


class OrderRuns(Generic[RunT]):
    """The runs of one driver."""

    def __init__(self, remove_marks: Callable[[Sequence[str]], None]) -> None:
        """``remove_marks`` removes start marks of attempts that do not run."""
        self._remove_marks = remove_marks
        self._live: dict[ActionId, tuple[RunT, asyncio.Task[RunReport]]] = {}
        #: Marks of live runs, to be removed when these have ended.
        self._forgotten: set[str] = set()

    def __iter__(self) -> Iterator[RunT]:
        return iter([run for run, _ in self._live.values()])

    def get(self, action_id: ActionId) -> RunT | None:
        """Return the run of an action; None when it does not run."""
        known = self._live.get(action_id)
        return known[0] if known is not None else None

    def tasks(self) -> list[asyncio.Task[RunReport]]:
        """Return the tasks of all runs."""
        return [task for _, task in self._live.values()]

    async def run(self, order: RunOrder, begin: Callable[[], RunT]) -> RunReport:
        """Run ``order`` to its end; ``begin`` makes the run if it does not run already."""
        while (known := self._live.get(order.id)) is not None:
            if known[0].order.mark == order.mark:
                return await asyncio.shield(known[1])
            await asyncio.wait([known[1]])
        run = begin()
        task = asyncio.create_task(run.live(), name=f"run {order.mark}")
        self._live[order.id] = run, task
        task.add_done_callback(lambda _: self._leave(order))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            run.stop(Outcome.CANCELLED, "the node worker abandoned it")
            await asyncio.wait([task])
            raise

    def stop(self, action_id: ActionId, outcome: Outcome, reason: str) -> None:
        """Stop a run; an action that does not run is ignored."""
        run = self.get(action_id)
        if run is not None:
            run.stop(outcome, reason)

    def resize(self, action_id: ActionId, attempt: int, allocation: Allocation) -> None:
        """Change the allocation of a run; an attempt that does not run is ignored."""
        run = self.get(action_id)
        if run is not None and run.order.attempt == attempt:
            run.resize(allocation)

    def forget(self, marks: Sequence[str]) -> None:
        """Remove marks, those of live runs once these have ended."""
        live = {run.order.mark for run in self}
        self._forgotten.update(live.intersection(marks))
        self._remove_marks([mark for mark in marks if mark not in live])

    async def end(self, chosen: Callable[[RunT], bool], outcome: Outcome, reason: str) -> None:
        """Stop the ``chosen`` runs, and wait for their end."""
        runs = [(run, task) for run, task in self._live.values() if chosen(run)]
        for run, _ in runs:
            run.stop(outcome, reason)
        if runs:
            await asyncio.wait([task for _, task in runs])

    async def end_of(self, trajectory: TrajectoryKey | str, outcome: Outcome, reason: str) -> None:
        """Stop the runs of ``trajectory``, and wait for their end."""
        await self.end(lambda run: run.order.action.trajectory_key == trajectory, outcome, reason)

    async def end_all(self, reason: str) -> None:
        """Stop all runs with an infrastructure failure, and wait for their end."""
        await self.end(lambda _: True, Outcome.INFRA_FAILED, reason)

    def _leave(self, order: RunOrder) -> None:
        self._live.pop(order.id, None)
        if order.mark in self._forgotten:
            self._forgotten.discard(order.mark)
            self._remove_marks([order.mark])


SHUTTING_DOWN = "the node worker is shutting down"
CLOSED = RunReport(Outcome.INFRA_FAILED, 0.0, detail="the driver is closed", never_started=True)
