"""Run context: what the steps of one rollout and the calls of its handler share on a worker.

Rules
1. Records are appended one after the other. An append that has begun is finished, though the call that made it is
   cancelled: the number of the next record depends on it.
2. A call to the port that says a retry may succeed is repeated, while the clock of the stage stops (`rollout.core.retries`).
3. An interruption ends the present stage from outside; the first one counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from domain.errors import CapacityError, TangramError
from domain.rollouts import RolloutProgress
from rollout.core.phase_timer import PhaseTimer
from rollout.core.retries import delay_of, is_over
from rollout.core.stage_machine import RolloutMachine
from rollout.ports import Record, RolloutPort, Seat
from rollout.worker.stage_clock import StageClock

T = TypeVar("T")
Pause = Callable[[float], Awaitable[object]]
Interruption = Callable[[], None]


class RunContext:
    """One rollout on this worker."""

    def __init__(
        self,
        port: RolloutPort,
        machine: RolloutMachine,
        now: Callable[[], float],
        pause: Pause = asyncio.sleep,
    ) -> None:
        self.port = port
        self.machine = machine
        self.rollout = machine.rollout
        self.attempt = machine.attempt
        timer = PhaseTimer(self.rollout.limits, machine.facts.active_seconds())
        self.clock = StageClock(timer, now, self._time_is_over)
        self.seat: Seat | None = None
        self.interrupted: asyncio.Future[Interruption] = self._no_interruption()
        self._now = now
        self._pause = pause
        self._appending = asyncio.Lock()
        self._begun: set[asyncio.Future[Any]] = set()

    async def append(self, record: Record) -> None:
        """Append a record; returns when it is on disk. Raises Superseded, TangramError."""
        await self.finishing(self._append(record))

    async def finishing(self, work: Awaitable[T]) -> T:
        """Await work that is finished also when its caller is cancelled."""
        task: asyncio.Future[T] = asyncio.ensure_future(work)
        self._begun.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    async def settled(self) -> None:
        """Wait for work that was begun."""
        while self._begun:
            await asyncio.wait(set(self._begun))

    def abandon(self) -> None:
        """Cancel work that was begun: the rollout is not this worker's any more."""
        for task in list(self._begun):
            task.cancel()

    async def patient(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call to the port, again while a retry may succeed. Raises what it raises."""
        failures, since = 0, self._now()
        while True:
            try:
                return await call()
            except CapacityError as error:
                failures += 1
                if is_over(self._now() - since):
                    raise
                with self.clock.held():
                    await self.pause(delay_of(failures, self.rollout.id, error.retry_after_seconds))

    async def pause(self, seconds: float) -> None:
        """Wait."""
        await self._pause(seconds)

    def interrupt(self, how: Interruption) -> None:
        """End the present stage from outside; ``how`` says it to the machine."""
        if not self.interrupted.done():
            self.interrupted.set_result(how)

    def stage_begins(self) -> None:
        """Forget the interruption of the stage before."""
        self.interrupted = self._no_interruption()

    def note(self) -> None:
        """Have the machine know the time of the present stage."""
        if self.machine.leased is not None:
            self.machine.note(self.clock.active(self.machine.leased))

    async def report(self, *, queued: bool = False, awaited: str = "") -> None:
        """Report progress, if that is possible now."""
        facts = self.machine.facts
        progress = RolloutProgress(
            self.machine.stage, queued, facts.turns, facts.response_tokens, awaited
        )
        try:
            await self.port.report(self.rollout, self.attempt, progress)
        except TangramError:
            pass

    async def _append(self, record: Record) -> None:
        async with self._appending:
            number = self.machine.facts.records
            await self.patient(lambda: self.port.append(self.rollout, self.attempt, number, record))
            self.machine.stored(record)

    def _done(self, task: asyncio.Future[Any]) -> None:
        self._begun.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may be gone

    def _time_is_over(self, why: str) -> None:
        self.interrupt(lambda: self.machine.timed_out(why))

    def _no_interruption(self) -> asyncio.Future[Interruption]:
        return asyncio.get_running_loop().create_future()
