"""Reports of the orders that a node executes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from domain.action import Kind, Outcome
from domain.decisions import Abort
from domain.events import ActionFinished, ActionStarted, Event
from domain.ports import Driver, RunOrder, RunReport
from scheduler.runtime.node.order_executor import BackgroundTasks, OrderExecutor
from scheduler.runtime.node.progress import CommandProgress
from scheduler.runtime.node.reporter import Reporter
from scheduler.runtime.node.routing import DriverRouting
from tests.conformance.driver import an_order


class Commands:
    """A driver whose commands end with an event."""

    kinds = frozenset({Kind.EXEC})

    def __init__(self, ends: asyncio.Event) -> None:
        self._ends = ends

    def stop(self, action_id: str, outcome: Outcome, reason: str) -> None:
        """It has no run of that name yet."""

    async def run(self, order: RunOrder, started: Callable[[], None]) -> RunReport:
        started()
        await self._ends.wait()
        return RunReport(Outcome.COMPLETED, 0.0)


class Reports:
    """Collects events."""

    def __init__(self) -> None:
        self.kinds: list[type[Event]] = []
        self.started, self.finished = asyncio.Event(), asyncio.Event()

    def report(self, event: Event, sent: Callable[[], None] | None = None) -> None:
        self.kinds.append(type(event))
        (self.started if isinstance(event, ActionStarted) else self.finished).set()
        if sent is not None:
            sent()


async def reported(ends: asyncio.Event, reports: Reports) -> int:
    """Execute one order; return how often it was settled."""
    drivers, settled = cast("list[Driver]", [Commands(ends)]), 0

    def settle() -> None:
        nonlocal settled
        settled += 1

    orders = OrderExecutor(
        "n1", drivers, DriverRouting(drivers), cast("Reporter", reports), CommandProgress("0-0"),
        BackgroundTasks(), {},
    )  # fmt: skip
    orders.begin(an_order(), settle)
    await reports.finished.wait()
    return settled


async def test_a_command_that_ends_at_once_is_reported_once() -> None:
    reports, ends = Reports(), asyncio.Event()
    ends.set()
    assert await reported(ends, reports) == 1
    assert reports.kinds == [ActionFinished]


async def test_a_command_that_goes_on_is_reported_as_started() -> None:
    reports = Reports()
    assert await reported(reports.started, reports) == 1  # it ends with the report of its start
    assert cast("list[Any]", reports.kinds) == [ActionStarted, ActionFinished]


async def test_an_attempt_that_a_predecessor_started_is_reported_again_and_not_run() -> None:
    """Its loop went back to a backup after the node had joined, and granted the attempt once more."""
    reports, settled = Reports(), list[bool]()
    drivers = cast("list[Driver]", [Commands(asyncio.Event())])
    order = an_order()
    end = ActionFinished(action_id=order.id, node="n1", outcome=Outcome.UNKNOWN, attempt=1)
    orders = OrderExecutor(
        "n1", drivers, DriverRouting(drivers), cast("Reporter", reports), CommandProgress("0-0"),
        BackgroundTasks(), {order.mark: end},
    )  # fmt: skip

    orders.begin(order, lambda: settled.append(True))

    assert (reports.kinds, settled) == ([ActionFinished], [True])


async def test_an_abort_that_is_read_with_its_order_ends_the_run() -> None:
    reports, order = Reports(), an_order()
    drivers = cast("list[Driver]", [Commands(asyncio.Event())])
    orders = OrderExecutor(
        "n1", drivers, DriverRouting(drivers), cast("Reporter", reports), CommandProgress("0-0"),
        BackgroundTasks(), {},
    )  # fmt: skip

    orders.begin(order, lambda: None)
    orders.abort(Abort(order.id, "n1", "cancelled by its trainer", Outcome.CANCELLED))

    await asyncio.wait_for(reports.finished.wait(), 5)
    assert cast("list[Any]", reports.kinds) == [ActionFinished]
