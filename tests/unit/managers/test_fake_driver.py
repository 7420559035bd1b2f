"""The in-memory driver plays what its script says."""

from __future__ import annotations

import asyncio

from domain.action import Outcome
from domain.ports import RunOrder
from managers.cpu.fake import FakeDriver, Play
from tests.conformance.driver import Performance, an_order


def a_driver(play: Play) -> FakeDriver:
    def script(order: RunOrder) -> Play:
        return play

    return FakeDriver(script)


async def test_a_script_decides_how_an_action_ends() -> None:
    driver = a_driver(Play(outcome=Outcome.OOM_KILLED, exit_code=137, detail="memory ran out"))
    report = await driver.run(an_order("x"), lambda: None)
    assert (report.outcome, report.detail) == (Outcome.OOM_KILLED, "memory ran out")


async def test_a_script_may_fail_before_the_start() -> None:
    driver = a_driver(Play(outcome=Outcome.INFRA_FAILED, never_started=True))
    performance = Performance(driver, an_order("x"))
    report = await performance.task
    assert report.never_started
    assert performance.starts == 0
    assert await driver.open() == []


async def test_an_action_may_run_until_it_is_stopped() -> None:
    driver = a_driver(Play(seconds=None))
    performance = Performance(driver, an_order("x"))
    await performance.started.wait()
    driver.stop(an_order("x").id, Outcome.CANCELLED, "enough")
    assert (await performance.task).outcome is Outcome.CANCELLED


async def test_slow_preparation_can_be_stopped_and_never_started() -> None:
    driver = a_driver(Play(preparing_seconds=600))
    performance = Performance(driver, an_order("x"))
    await asyncio.sleep(0)
    driver.stop(an_order("x").id, Outcome.CANCELLED, "enough")
    assert (await performance.task).never_started
