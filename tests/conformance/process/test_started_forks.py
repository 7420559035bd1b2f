"""Children of a running environment are started ahead of their first command, and leave nothing when removed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from domain.ids import TrajectoryKey
from managers.cpu.process import ProcessDriver
from managers.cpu.process.process_table import ProcessTable
from managers.cpu.process.process_tag import ProcessTagger
from tests.conformance.driver import TRAJECTORY, an_order
from tests.conformance.forking import a_fork
from tests.conformance.isolations import a_driver, isolations

pytestmark = pytest.mark.skipif("bwrap" not in isolations(), reason="no sandbox works here")
CHILDREN = tuple(TrajectoryKey(f"lab/child-{number}") for number in range(4))


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[ProcessDriver]:
    driver = a_driver(tmp_path, "bwrap")
    await driver.open()
    yield driver
    await driver.close()


async def said(driver: ProcessDriver, script: str, trajectory: TrajectoryKey = TRAJECTORY) -> str:
    name = trajectory.partition("/")[2]
    order = an_order("sh", "-c", script, name=f"act_{name}_{len(script)}", trajectory=name)
    report = await driver.run(order, lambda: None)
    assert report.result is not None, report
    return report.result.stdout


def running(driver: ProcessDriver) -> set[str]:
    assert driver.environments is not None
    return {each.trajectory for each in driver.environments.all()}


async def test_children_of_a_running_source_run_before_their_first_command(driver: ProcessDriver):
    await said(driver, "echo kept >/tmp/file")
    report = await driver.fork_environment(a_fork(TRAJECTORY, *CHILDREN))
    assert report.way == "sealed"
    async with asyncio.timeout(60):
        while running(driver) != {TRAJECTORY, *CHILDREN}:
            await asyncio.sleep(0.01)
    assert driver.environments is not None
    pid = driver.environments.of(CHILDREN[0]).pid
    assert await said(driver, "cat /tmp/file", CHILDREN[0]) == "kept\n"
    assert driver.environments.of(CHILDREN[0]).pid == pid


async def test_children_that_are_used_at_once_have_one_init_each(driver: ProcessDriver):
    await said(driver, "echo kept >/tmp/file")
    await driver.fork_environment(a_fork(TRAJECTORY, *CHILDREN))
    outputs = await asyncio.gather(*(said(driver, "cat /tmp/file", each) for each in CHILDREN))
    assert set(outputs) == {"kept\n"}
    assert running(driver) == {TRAJECTORY, *CHILDREN}


async def test_children_that_are_removed_at_once_leave_nothing(
    driver: ProcessDriver, tmp_path: Path
):
    await said(driver, "echo kept >/tmp/file")
    await driver.fork_environment(a_fork(TRAJECTORY, *CHILDREN))
    await asyncio.gather(*(driver.remove_environment(each) for each in reversed(CHILDREN)))
    await driver.fork_environment(a_fork(TRAJECTORY, TrajectoryKey("lab/other")))
    assert await said(driver, "cat /tmp/file", TrajectoryKey("lab/other")) == "kept\n"
    assert running(driver) == {TRAJECTORY, "lab/other"}
    assert len(list((tmp_path / "state" / "environments").iterdir())) == 2


async def test_children_of_a_source_that_does_not_run_are_not_started(driver: ProcessDriver):
    await driver.put_file(TRAJECTORY, "file", b"kept\n")
    await driver.fork_environment(a_fork(TRAJECTORY, *CHILDREN))
    assert running(driver) == set()
    assert await said(driver, "cat file", CHILDREN[0]) == "kept\n"


@pytest.mark.parametrize("pause", [0.0, 0.005, 0.02])
async def test_a_driver_that_closes_meanwhile_leaves_no_sandbox(tmp_path: Path, pause: float):
    driver = a_driver(tmp_path, "bwrap")
    await driver.open()
    await said(driver, "true")
    await driver.fork_environment(a_fork(TRAJECTORY, *CHILDREN))
    driver.images.keep_warm({"": 4})
    await asyncio.sleep(pause)
    await driver.close()
    tagger = ProcessTagger.load(tmp_path / "state" / "driver.key")
    assert ProcessTable(tagger).find_all() == {}
