"""A parked environment is frozen, gives its page cache back, and wakes for its next action."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from domain.action import Outcome
from domain.errors import Conflict, NotFound
from domain.ids import ActionId, TrajectoryKey
from managers.cpu.process import ProcessDriver
from tests.conformance.driver import FOREVER, TRAJECTORY, Performance, an_order
from tests.conformance.forking import CHILD, a_fork
from tests.conformance.isolations import a_driver, isolations

pytestmark = pytest.mark.skipif("bwrap" not in isolations(), reason="no bwrap")

#: D: a shell whose child is stopped before its exec (vfork); it stops before it runs again.
STILL = {"T", "t", "D"}
COUNTER = "(while :; do echo x >>ticks; sleep 0.01; done) >/dev/null 2>&1 & sleep 0.05"


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[ProcessDriver]:
    driver = a_driver(tmp_path, "bwrap")
    await driver.open()
    yield driver
    await driver.close()


async def said(driver: ProcessDriver, line: str, name: str, trajectory: str = "trj-1") -> str:
    order = an_order("sh", "-c", line, name=name, trajectory=trajectory)
    report = await driver.run(order, lambda: None)
    assert report.result is not None, report
    assert report.result.exit_code == 0, report
    return report.result.stdout


def states(driver: ProcessDriver) -> set[str]:
    """Return the states of the programs of the one environment."""
    assert driver.environments is not None
    (environment,) = driver.environments.all()
    found = set()
    for each in environment.processes():
        stat = Path(f"/proc/{each.pid}/stat").read_text()
        found.add(stat.rpartition(")")[2].split()[0])
    return found


async def test_programs_are_frozen_and_continue_with_the_next_action(driver):
    await said(driver, COUNTER, "act_1")
    report = await driver.park_environment(TRAJECTORY)

    assert report.seconds >= 0
    assert states(driver) <= STILL
    ticks = Path(driver._directory)
    before = int(await asyncio.to_thread(count, ticks))
    assert before == count(ticks), "it writes on"
    assert await said(driver, "echo awake", "act_2") == "awake\n"
    await grown(ticks, before)


def count(state: Path) -> int:
    (log,) = state.glob("environments/*/layer/workspace/ticks")
    return log.stat().st_size


async def grown(state: Path, before: int) -> None:
    """Return when the program has written; its state alone may be D of its disk or its vfork."""
    async with asyncio.timeout(30):
        while count(state) <= before:
            await asyncio.sleep(0.01)


async def test_page_cache_is_given_back(driver):
    if driver.memory is None:
        pytest.skip("no control groups of memory")
    await said(driver, "head -c 64M /dev/zero >big; cat big >/dev/null", "act_1")
    report = await driver.park_environment(TRAJECTORY)
    assert report.reclaimed_bytes > 32 * 2**20


async def test_an_environment_with_an_action_is_not_parked(driver):
    performance = Performance(driver, an_order(*FOREVER))
    await performance.started.wait()
    with pytest.raises(Conflict):
        await driver.park_environment(TRAJECTORY)
    driver.stop(ActionId("act_1"), Outcome.CANCELLED, "enough")
    await performance.task


async def test_one_that_does_not_run_or_is_not_here_is_not_found(driver):
    with pytest.raises(NotFound):
        await driver.park_environment(TrajectoryKey("lab/nosuch"))


async def test_a_parked_environment_can_be_forked_and_removed(driver):
    await said(driver, f"echo 1 >a; {COUNTER}", "act_1")
    await driver.park_environment(TRAJECTORY)
    await driver.fork_environment(a_fork(TRAJECTORY, CHILD, on_busy="copy"))
    assert await said(driver, "cat a", "act_2", "trj-2") == "1\n"
    await driver.park_environment(TRAJECTORY)
    await driver.remove_environment(TRAJECTORY)
    assert driver.environments is not None
    assert [each.trajectory for each in driver.environments.all()] == [CHILD]


async def test_an_idle_environment_is_parked_by_itself(tmp_path):
    driver = a_driver(tmp_path, "bwrap", environment_park_seconds="0.2")
    await driver.open()
    try:
        await said(driver, COUNTER, "act_1")
        async with asyncio.timeout(30):
            while not driver._parking.is_parked(TRAJECTORY):
                await asyncio.sleep(0.02)
        assert states(driver) <= STILL
        assert await said(driver, "echo awake", "act_2") == "awake\n"
    finally:
        await driver.close()
