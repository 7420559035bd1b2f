"""Orders under way: what every driver that runs orders has to remember of them.

Theory of operation. An order becomes a *run*, a task of its own that nothing cancels: when whoever
waits for it is cancelled, the run is stopped and its end is awaited. So nothing is left running
because somebody stopped listening.

1. An order that runs already is not run twice; another attempt at the same action waits for the end
   of the one before.
2. A starting mark (`managers.common.start_log`) that is taken back while its attempt runs goes when it has
   ended: until then a crash must find it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from domain.action import Outcome
from domain.allocation import Allocation
from domain.ids import ActionId, TrajectoryKey
from domain.ports import RunOrder, RunReport


class Run(Protocol):
    """One order being executed."""

    order: RunOrder

    def stop(self, outcome: Outcome, reason: str) -> None:
        """End it with ``outcome``, unless it ended by itself or is being ended already."""

    def resize(self, allocation: Allocation) -> None:
        """Go on with another allocation of one resource."""

    async def live(self) -> RunReport:
        """Run the order to its end. Raises nothing; is not cancelled."""


class StoppableRun:
    """The part of a run that is told, once, to end."""

    def __init__(self, order: RunOrder) -> None:
        self.order = order
        self.stopped: asyncio.Future[tuple[Outcome, str]] = (
            asyncio.get_running_loop().create_future()
        )

    def stop(self, outcome: Outcome, reason: str) -> None:
        """End it with ``outcome``, unless it is being ended already."""
        if not self.stopped.done():
            self.stopped.set_result((outcome, reason))


RunT = TypeVar("RunT", bound=Run)


class Runs(Generic[RunT]):
    """The runs of one driver."""

    def __init__(self, take_back: Callable[[Sequence[str]], None]) -> None:
        """``take_back`` removes starting marks of attempts that do not run."""
        self._take_back = take_back
        self._live: dict[ActionId, tuple[RunT, asyncio.Task[RunReport]]] = {}
        #: Marks of live runs that may go when these have ended.
        self._forgotten: set[str] = set()

    def __iter__(self) -> Iterator[RunT]:
        return iter([run for run, _ in self._live.values()])

    def get(self, action_id: ActionId) -> RunT | None:
        """Return the run of an action; None when none is under way."""
        known = self._live.get(action_id)
        return known[0] if known is not None else None

    def tasks(self) -> list[asyncio.Task[RunReport]]:
        """Return what is under way."""
        return [task for _, task in self._live.values()]

    async def run(self, order: RunOrder, begin: Callable[[], RunT]) -> RunReport:
        """Run ``order`` to its end; ``begin`` is called if it does not run already."""
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
            run.stop(Outcome.CANCELLED, "the node worker gave it up")
            await asyncio.wait([task])
            raise

    def stop(self, action_id: ActionId, outcome: Outcome, reason: str) -> None:
        """End a run; an action that does not run is ignored."""
        run = self.get(action_id)
        if run is not None:
            run.stop(outcome, reason)

    def resize(self, action_id: ActionId, attempt: int, allocation: Allocation) -> None:
        """Let a run go on with something else; an attempt that does not run is ignored."""
        run = self.get(action_id)
        if run is not None and run.order.attempt == attempt:
            run.resize(allocation)

    def forget(self, marks: Sequence[str]) -> None:
        """Take marks back, those of live runs once these have ended."""
        live = {run.order.mark for run in self}
        self._forgotten.update(live.intersection(marks))
        self._take_back([mark for mark in marks if mark not in live])

    async def end(self, chosen: Callable[[RunT], bool], outcome: Outcome, reason: str) -> None:
        """Stop the ``chosen`` runs, and wait for their end."""
        runs = [(run, task) for run, task in self._live.values() if chosen(run)]
        for run, _ in runs:
            run.stop(outcome, reason)
        if runs:
            await asyncio.wait([task for _, task in runs])

    async def end_of(self, trajectory: TrajectoryKey | str, outcome: Outcome, reason: str) -> None:
        """Stop what runs of ``trajectory``, and wait for its end."""
        await self.end(lambda run: run.order.action.trajectory_key == trajectory, outcome, reason)

    async def end_all(self, reason: str) -> None:
        """Stop everything because this side goes away, and wait for its end."""
        await self.end(lambda _: True, Outcome.INFRA_FAILED, reason)

    def _leave(self, order: RunOrder) -> None:
        self._live.pop(order.id, None)
        if order.mark in self._forgotten:
            self._forgotten.discard(order.mark)
            self._take_back([order.mark])


SHUTTING_DOWN = "the node worker is shutting down"
CLOSED = RunReport(Outcome.INFRA_FAILED, 0.0, detail="the driver is closed", never_started=True)
