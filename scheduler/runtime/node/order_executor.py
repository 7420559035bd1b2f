"""Execution of run orders: each order passes through its driver to one report, with its reward.

Rules
1. An order whose mark a predecessor left is not run again. Its end was reported when the node joined, and is reported once more: a
   loop that went back to a backup did not wait for it then, and has granted the attempt since.
2. A later attempt of an action begins when the earlier one has ended on this node.
3. A resize that precedes the start of the driver applies to the start.
4. A command that was not started is marked on disk before its report (`unstarted`), so that a successor which reads
   its order again does not run it.
5. A start is reported after `START_SECONDS`, or with the end before that: of a command that ends at once the scheduler
   and all its readers handle one report instead of two. Until then the order counts as granted, and a node that dies
   has its start mark, as between any start and its report.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

import msgspec

from domain.action import Kind, Outcome
from domain.allocation import Allocation
from domain.decisions import Abort, Resize
from domain.events import NO_RESULT, ActionFinished, ActionStarted
from domain.ids import ActionId
from domain.ports import Driver, RunOrder, RunReport
from managers.common.reward_evidence import NO_READING, RewardReading, read_reward
from scheduler.runtime.body_store import BodyLost, BodyStore
from scheduler.runtime.node.progress import CommandProgress
from scheduler.runtime.node.reporter import Reporter
from scheduler.runtime.node.routing import DriverRouting
from scheduler.runtime.stored_actions import stored_result, with_inputs

log = logging.getLogger(__name__)

#: Commands that take less have no report of their start.
START_SECONDS: Final = 0.003


class BackgroundTasks:
    """Tasks without a waiter; referenced, so that none is garbage-collected while it runs."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start ``work`` as a task."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class OrderExecutor:
    """OrderExecutor of one node."""

    def __init__(
        self,
        node: str,
        drivers: Sequence[Driver],
        routing: DriverRouting,
        reporter: Reporter,
        progress: CommandProgress,
        background: BackgroundTasks,
        known: Mapping[str, ActionFinished],
        refusal: Callable[[], str] = lambda: "",
        bodies: BodyStore | None = None,
        unstarted: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        """``refusal`` returns why commands cannot be started now; empty while they can. ``unstarted`` stores a mark (rule 4)."""
        self._node = node
        self._drivers = drivers
        self._routing = routing
        self._reporter = reporter
        self._progress = progress
        self._background = background
        #: By mark: the ends of runs that predecessors started (rule 1).
        self._known = known
        self._refusal = refusal
        self._bodies = bodies or BodyStore(None)
        self._unstarted = unstarted
        #: Actions that no driver has yet → outcome and reason, once stopped.
        self._loading: dict[ActionId, tuple[Outcome, str] | None] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        #: Latest allocation of resized runs, by mark (rule 3).
        self._resized: dict[str, Allocation] = {}

    def begin(self, order: RunOrder, settled: Callable[[], None]) -> None:
        """Execute ``order``; ``settled`` is called once, when its start or its end is reported."""
        if (end := self._known.get(order.mark)) is not None:
            self._reporter.report(end, settled)
        elif order.action.kind is Kind.NOOP:
            self._finished(order, RunReport(Outcome.COMPLETED, 0.0), settled)
        else:
            before = self._running.get(order.id)
            if before is None:
                self._loading[order.id] = None  # an abort may be read before the task begins
            work = self._drive(order, _once(settled), before)
            self._running[order.id] = self._background.spawn(work)

    def resize(self, wanted: Resize) -> None:
        """Resize a run to other units."""
        if wanted.action_id not in self._running:
            return
        self._resized[f"{wanted.action_id}#{wanted.attempt}"] = wanted.allocation
        for driver in self._drivers:
            driver.resize(wanted.action_id, wanted.attempt, wanted.allocation)

    def abort(self, wanted: Abort) -> None:
        """End a run; one that has ended already is reported as ended."""
        if wanted.action_id in self._running:
            for driver in self._drivers:
                driver.stop(wanted.action_id, wanted.outcome, wanted.reason)
            self._routing.stop(wanted.action_id, wanted.outcome, wanted.reason)
            if wanted.action_id in self._loading:
                self._loading[wanted.action_id] = wanted.outcome, wanted.reason
            return
        self._reporter.report(
            ActionFinished(
                action_id=wanted.action_id,
                node=self._node,
                outcome=wanted.outcome,
                attempt=wanted.attempt,
                detail=f"{wanted.reason} (it was not running any more)",
            )
        )

    async def _drive(
        self, order: RunOrder, settled: Callable[[], None], before: asyncio.Task[None] | None
    ) -> None:
        if before is not None:
            await asyncio.wait({before})  # an earlier attempt is still being ended
            self._loading[order.id] = None

        reporting: asyncio.TimerHandle | None = None

        def report_start() -> None:
            self._reporter.report(
                ActionStarted(action_id=order.id, node=self._node, attempt=order.attempt)
            )
            settled()

        def started() -> None:
            nonlocal reporting
            loop = asyncio.get_running_loop()
            reporting = loop.call_later(START_SECONDS, report_start)  # rule 5

        try:
            report = await self._report_of(order, started)
        except Exception as error:
            # Drivers must not raise. An action of one that does must not run for ever.
            log.exception("the driver of %s raised", order.mark)
            detail = f"the driver raised {type(error).__name__}: {error}"
            report = RunReport(Outcome.INFRA_FAILED, 0.0, detail=detail)
        self._resized.pop(order.mark, None)
        self._loading.pop(order.id, None)
        unrun = report.never_started or (order.action.kind is Kind.EXEC and reporting is None)
        if unrun and self._unstarted is not None:
            await self._unstarted(order.mark)
        reward = await _read_reward(order, report)
        left = report.result or report.answer
        result = NO_RESULT if left is None else await stored_result(left, self._bodies)
        if reporting is not None:
            reporting.cancel()
        self._finished(order, report, settled, reward, result)
        if self._running.get(order.id) is asyncio.current_task():
            del self._running[order.id]

    async def _report_of(self, order: RunOrder, started: Callable[[], None]) -> RunReport:
        driver = self._routing.of(order)
        if driver is None:
            detail = f"this node has no driver for {order.action.kind}"
            return RunReport(Outcome.INFRA_FAILED, 0.0, detail=detail)
        if order.action.kind is Kind.EXEC and (why := self._refusal()):
            detail = f"node {self._node} refuses new work: {why}"
            return RunReport(Outcome.INFRA_FAILED, 0.0, detail=detail, never_started=True)
        if (failure := await self._routing.prepare(order, driver)) is not None:
            return failure
        try:
            order = await with_inputs(order, self._bodies)
        except BodyLost as error:
            return RunReport(Outcome.INFRA_FAILED, 0.0, detail=f"body_lost: {error}")
        if (stopped := self._loading.pop(order.id, None)) is not None:
            outcome, reason = stopped
            return RunReport(outcome, 0.0, detail=reason, never_started=True)
        changed = self._resized.get(order.mark)
        return await driver.run(order.resized(changed) if changed else order, started)

    def _finished(
        self,
        order: RunOrder,
        report: RunReport,
        settled: Callable[[], None],
        reward: RewardReading = NO_READING,
        result: msgspec.Raw = NO_RESULT,
    ) -> None:
        event = ActionFinished(
            action_id=order.id,
            node=self._node,
            outcome=report.outcome,
            attempt=order.attempt,
            execution_seconds=report.execution_seconds,
            result=result,
            reward=reward.value,
            detail="; ".join(filter(None, (report.detail, reward.reason))) or None,
            never_started=report.never_started,
            feedback=report.feedback,
            used=report.result.used if report.result is not None else None,
            chunk=report.chunk,
            usage=report.usage,
        )

        def sent() -> None:
            settled()
            if order.action.kind is not Kind.NOOP:
                self._progress.ended(order.mark)

        self._reporter.report(event, sent)


async def _read_reward(order: RunOrder, report: RunReport) -> RewardReading:
    if report.reward_file is None:
        return read_reward(order.action.reward, report)
    # Its report may have megabytes.
    return await asyncio.to_thread(read_reward, order.action.reward, report)


def _once(call: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls ``call`` the first time only."""
    calls = iter((call,))
    return lambda: next(calls, lambda: None)()
