"""Rollout run: does the steps of one rollout that is assigned to this worker, until it is reported or withdrawn.

Rules
1. Each step of the stage machine is done to its end before the next one is asked for; its outcome, also an error, is
   given to the machine. So every rollout ends with one result, whatever a step raises.
2. A stage's handler is invoked once its lease is held, and gets a process only then. In quarantine, where places are few,
   the lease is given back while the handler waits for a place, and the place is left with the lease.
3. An interruption (time limit, lost environment, unknown action) stops the handler first, then is given to the machine.
4. A withdrawn rollout ends without a report, and nothing of it is touched, apart from its handler, which is stopped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from domain.errors import CapacityError, Conflict, InvalidRequest, TangramError, Unavailable
from domain.rollouts import RolloutOutcome, RolloutResult, Stage
from rollout.core.records import RESULT, dropped_by
from rollout.core.results import MAX_REASON_CHARACTERS, Failure
from rollout.core.retries import delay_of
from rollout.core.stage_machine import RolloutMachine
from rollout.core.steps import (
    CloseTrajectory,
    Invoke,
    PrepareTrajectory,
    ReleaseLease,
    ReportEnd,
    Step,
    Store,
    TakeLease,
)
from rollout.ports import (
    Assigned,
    LostEnvironment,
    Record,
    RolloutPort,
    Seat,
    StageLease,
    Superseded,
    Withdrawn,
)
from rollout.worker.frames import FrameTooLong
from rollout.worker.handler_pool import (
    HandlerJob,
    HandlerPool,
    HandlerRaised,
    ProcessEnded,
)
from rollout.worker.run_context import Pause, RunContext
from rollout.worker.stage_calls import StageCalls, is_refusal

#: Limit of an exception callback, and of ``final_result``.
CALLBACK_SECONDS: Final = 10.0
#: Tries to close a trajectory; one that stays open ends with its time to live.
CLOSE_TRIES: Final = 3

log = logging.getLogger(__name__)


class RolloutRun:
    """One assignment."""

    def __init__(
        self,
        port: RolloutPort,
        pool: HandlerPool,
        places: Mapping[str, str],
        assigned: Assigned,
        now: Callable[[], float],
        pause: Pause = asyncio.sleep,
    ) -> None:
        self.rollout = assigned.rollout
        self.attempt = assigned.attempt
        self._port = port
        self._pool = pool
        self._places = places
        self._now = now
        self._pause = pause
        self._withdrawn: Withdrawn | None = None
        self._driving: asyncio.Task[None] | None = None
        self._context: RunContext | None = None
        self._calls: StageCalls | None = None
        self._job: HandlerJob | None = None
        self._lease: StageLease | None = None

    async def run(self) -> None:
        """Do the rollout to its end."""
        if self._withdrawn is not None:
            return
        self._driving = asyncio.ensure_future(self._drive())
        try:
            await asyncio.wait({self._driving})
            if self._withdrawn is None:
                self._driving.result()
            else:
                await self._leave()
        except Exception as error:
            log.exception("rollout %s: its run failed", self.rollout.id)
            await self._report(broken_result(f"{type(error).__name__}: {error}"))
        finally:
            self._driving.cancel()
            if self._context is not None:
                self._context.abandon()
            if self._job is not None:
                self._job.close()

    def withdraw(self, withdrawn: Withdrawn) -> None:
        """End the run: the rollout is not this worker's any more."""
        if self._withdrawn is None:
            self._withdrawn = withdrawn
            if self._driving is not None:
                self._driving.cancel()

    async def ask(self, method: str, body: Mapping[str, Any]) -> Any:
        """Ask the handler of RUN something, as an agent that is not ours does.

        Raises Conflict once RUN is over; Unavailable before it begins, and while its handler moves to another process;
        and what the handler raises.
        """
        job, context = self._job, self._context
        if self._withdrawn is not None or context is None:
            raise Unavailable(f"{self.rollout.id} is about to be continued")
        machine = context.machine
        if machine.stage is Stage.EVAL or machine.facts.result is not None:
            raise Conflict(
                f"RUN of {self.rollout.id} is over: it takes no further calls of its agent"
            )
        if job is None or machine.stage is Stage.INIT:
            raise Unavailable(f"RUN of {self.rollout.id} has not begun")
        try:
            return await job.ask(method, body)
        except ProcessEnded as error:
            raise Unavailable(f"{self.rollout.id} continues in another process: {error}") from None
        except FrameTooLong as error:
            raise InvalidRequest(str(error)) from None

    async def _drive(self) -> None:
        records = await self._records()
        if records is None:
            return
        machine = RolloutMachine(self.rollout, self.attempt, records)
        self._context = RunContext(self._port, machine, self._now, self._pause)
        self._calls = StageCalls(self._context)
        if self.rollout.handler not in self._places:
            machine.broken(
                f"no handler {self.rollout.handler!r} is installed where rollouts run; there are"
                f" {', '.join(sorted(self._places))}; install the package that has it",
                callbacks=False,
            )
        while (step := machine.next()) is not None:
            await self._try(step, machine)

    async def _records(self) -> Sequence[Record] | None:
        """Return the log; None: the rollout is not this worker's any more, or has ended."""
        failures = 0
        while True:
            try:
                return await self._port.read(self.rollout)
            except Superseded:
                return None
            except CapacityError as error:
                failures += 1
                await self._pause(delay_of(failures, self.rollout.id, error.retry_after_seconds))
            except TangramError as error:
                await self._report(broken_result(f"its log cannot be read: {error}"))
                return None

    async def _try(self, step: Step, machine: RolloutMachine) -> None:
        """Do a step, and give the machine an error of it."""
        try:
            await self._do(step, machine)
        except Superseded:
            machine.dropped()
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            if isinstance(step, Invoke) and not step.callback.is_stage:
                machine.raised(step, Failure(type(error).__name__, str(error)))
            elif isinstance(error, LostEnvironment):
                machine.environment_lost(why)
            elif is_refusal(error):
                machine.refused(str(error))
            else:
                log.exception("rollout %s: a step failed: %r", self.rollout.id, step)
                machine.broken(why)

    async def _do(self, step: Step, machine: RolloutMachine) -> None:
        match step:
            case TakeLease(stage, number):
                await self._take_lease(stage, number)
            case PrepareTrajectory():
                await self._open()
            case Invoke():
                await self._invoke(step)
            case Store():
                await self._store(step)
            case CloseTrajectory(name):
                await self._close(name)
            case ReleaseLease():
                await self._release()
            case ReportEnd(result):
                await self._report(result)
                machine.reported()

    @property
    def _run(self) -> RunContext:
        assert self._context is not None
        return self._context

    @property
    def _stage_calls(self) -> StageCalls:
        assert self._calls is not None
        return self._calls

    async def _take_lease(self, stage: Stage, number: int) -> None:
        context = self._run
        await context.report(queued=True)
        lease = await context.patient(
            lambda: self._port.lease(self.rollout, self.attempt, stage, number, self._move_seat)
        )
        self._lease, context.seat = lease, lease.seat
        context.machine.leased_stage(stage, lease.id, lease.queued_seconds)
        context.clock.begin(stage)
        await context.report()

    def _move_seat(self, seat: Seat | None) -> None:
        """Take the seat of a lease that follows the one that the stage began with."""
        if self._lease is None:
            return
        self._run.seat = seat
        if self._job is not None:
            self._job.move_seat(seat)

    async def _open(self) -> None:
        """Open the trajectory of the stage, up to an interruption."""
        context = self._run
        context.stage_begins()
        context.clock.check()
        work = asyncio.ensure_future(self._stage_calls.open_trajectory())
        try:
            ends: set[asyncio.Future[Any]] = {work, context.interrupted}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not work.done():
                work.cancel()
        if context.interrupted.done():
            context.note()
            context.interrupted.result()()
        else:
            work.result()

    async def _invoke(self, step: Invoke) -> None:
        """Have the handler do a method, up to its end or an interruption."""
        context = self._run
        context.stage_begins()
        job = await self._opened_job()
        if job is None:
            return
        work = asyncio.ensure_future(job.invoke(step, context.seat))
        ends: set[asyncio.Future[Any]] = {work}
        if step.callback.is_stage:
            ends.add(context.interrupted)
            context.clock.check()
        try:
            limit = None if step.callback.is_stage else CALLBACK_SECONDS
            await asyncio.wait(ends, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if not work.done() or context.interrupted.done():
                await self._stop_job()
        finally:
            work.cancel()
        await asyncio.wait({work})
        await self._take_end(step, work)

    async def _take_end(self, step: Invoke, work: asyncio.Future[Any]) -> None:
        """Give the machine how a method ended."""
        context, machine = self._run, self._run.machine
        crash = None if work.cancelled() else work.exception()
        if isinstance(crash, ProcessEnded):
            # Its actions stay: the handler that continues awaits them.
            self._drop_job()
        elif step.callback.is_stage:
            if self._job is not None:
                await self._job.end_calls()
            await self._stage_calls.end_stage()
        await context.settled()
        context.note()
        if context.interrupted.done():
            context.interrupted.result()()
        elif isinstance(crash, ProcessEnded):
            machine.crashed(step, str(crash), caused=crash.caused)
        elif isinstance(crash, HandlerRaised):
            machine.raised(step, crash.failure)
        elif crash is not None or work.cancelled():
            machine.raised(step, Failure("TimeoutError", f"longer than {CALLBACK_SECONDS:g} s"))
        else:
            machine.returned(step, work.result())

    async def _opened_job(self) -> HandlerJob | None:
        """Return the job of this rollout in some process, which has its history; None: its lease was given back for it."""
        if self._job is not None:
            return self._job
        context, machine = self._run, self._run.machine
        answer, crashes = self._stage_calls.answer, machine.crashes
        job = self._pool.job_at_once(answer, crashes) if crashes else None
        waits = crashes > 0 and job is None and machine.leased is not None
        if waits:
            await self._return_lease()
            machine.gave_back()
        if job is None:
            with context.clock.held():
                job = await self._pool.job(answer, crashes)
        facts = machine.facts
        place = self._places[self.rollout.handler]
        try:
            job.open(place, self.rollout, self.attempt, facts.request, list(facts.history))
        except BaseException:  # its history is too long
            job.close()
            raise
        self._job = job
        return None if waits else job

    async def _stop_job(self) -> None:
        if self._job is not None and not await self._job.stop():
            log.warning("rollout %s: its handler does not stop", self.rollout.id)
            self._drop_job()

    def _drop_job(self) -> None:
        job, self._job = self._job, None
        if job is not None:
            job.close()

    async def _store(self, step: Store) -> None:
        context = self._run
        try:
            await context.append(step.record)
        except Superseded:
            raise
        except Exception as error:
            if step.record.kind != RESULT:
                raise
            # The result is reported all the same; its detail is lost.
            log.error("rollout %s: its result is not in its log: %s", self.rollout.id, error)
            context.machine.stored(step.record)
        if dropped_by(step.record.kind, step.record.header):
            self._drop_job()  # its history has what is lost

    async def _close(self, name: str) -> None:
        for failures in range(1, CLOSE_TRIES + 1):
            try:
                await self._port.finish(self.rollout, name)
            except (Superseded, LostEnvironment, InvalidRequest):
                break
            except Exception as error:
                log.warning("rollout %s: %s stays open: %s", self.rollout.id, name, error)
                await self._run.pause(delay_of(failures, self.rollout.id))
            else:
                break
        self._run.machine.closed(name)

    async def _release(self) -> None:
        if self._job is not None and self._job.in_quarantine:
            self._drop_job()
        await self._return_lease()
        self._run.machine.released()

    async def _return_lease(self) -> None:
        context = self._run
        context.note()
        context.clock.end()
        lease, self._lease, context.seat = self._lease, None, None
        try:
            if lease is not None:
                await self._port.release(lease)
        except Exception as error:  # it expires
            log.warning("rollout %s: its lease is not released: %s", self.rollout.id, error)

    async def _report(self, result: RolloutResult) -> None:
        """Report the end until it is accepted: another worker cannot know that this one gave up."""
        failures = 0
        while True:
            try:
                await self._port.finished(self.rollout, self.attempt, result)
            except Superseded:
                return
            except Exception as error:
                failures += 1
                least = error.retry_after_seconds if isinstance(error, CapacityError) else 0.0
                log.warning("rollout %s: its end is not reported: %s", self.rollout.id, error)
                await self._pause(delay_of(failures, self.rollout.id, least))
            else:
                return

    async def _leave(self) -> None:
        """Stop the handler of a withdrawn rollout."""
        if self._context is not None:
            self._context.abandon()
            await self._stop_job()
            await self._stage_calls.drop_channels()


def broken_result(why: str) -> RolloutResult:
    """Return the result of a rollout that cannot be run here."""
    return RolloutResult(RolloutOutcome.INFRA_FAILED, reason=why[:MAX_REASON_CHARACTERS])
