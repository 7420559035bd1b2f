"""Adoption: living environments survive the death of their node worker, and orphans do not."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from domain.ids import TrajectoryKey
from managers.cpu.environment.adoption import RECORD
from managers.cpu.environment.kept import KeptEnvironment
from managers.cpu.environment.protocol import NoEnvironment
from managers.cpu.process import ProcessDriver
from managers.cpu.process.process_tag import ProcessTagger
from tests.conformance.driver import TRAJECTORY, an_order
from tests.conformance.isolations import a_driver, isolations
from tests.conformance.process.test_process_ending import (
    command_line,
    processes_with,
    until_asleep,
)

pytestmark = pytest.mark.skipif("bwrap" not in isolations(), reason="no bubblewrap here")

#: A worker that leaves a process in the background, starts another action, says so, and waits.
WORKER = """
import asyncio, sys
from pathlib import Path
from tests.conformance.driver import an_order
from tests.conformance.isolations import a_driver

async def main(directory, left, acting, isolation):
    driver = a_driver(Path(directory), isolation)
    await driver.open()
    script = f"echo kept >/tmp/file; cd /tmp; (while :; do echo log; sleep 0.01; done) & sleep {left} &"
    await driver.run(an_order("sh", "-c", script, name="act_left"), lambda: None)
    script = f"setsid sleep {acting} & sleep {acting}"
    await driver.run(an_order("sh", "-c", script, name="act_ran"), lambda: print("started", flush=True))

asyncio.run(main(*sys.argv[1:]))
"""


async def killed_worker(directory: Path, left: str, acting: str, isolation: str = "bwrap") -> None:
    """Let a worker leave one process and run another, and kill it."""
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WORKER, str(directory), left, acting, isolation, stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert worker.stdout is not None
    assert await worker.stdout.readline() == b"started\n"
    async with asyncio.timeout(60):
        while len(sleeping(acting)) < 2 or not sleeping(left):
            await asyncio.sleep(0.01)
    worker.send_signal(signal.SIGKILL)
    await worker.communicate()


def sleeping(seconds: str) -> list[int]:
    wanted = f"sleep\0{seconds}".encode()
    return [pid for pid in processes_with(seconds) if wanted in command_line(pid)]


@asynccontextmanager
async def a_life(directory: Path, **settings: str) -> AsyncIterator[ProcessDriver]:
    driver = a_driver(directory, "bwrap", **settings)
    await driver.open()
    try:
        yield driver
    finally:
        await driver.close()


def the_environment(driver: ProcessDriver) -> KeptEnvironment:
    assert driver.environments is not None
    return driver.environments.of(TRAJECTORY)


async def said(driver: ProcessDriver, script: str, name: str) -> str:
    report = await driver.run(an_order("sh", "-c", script, name=name), lambda: None)
    assert report.result is not None, report
    return report.result.stdout


async def test_an_environment_survives_a_killed_worker_and_the_action_that_ran_does_not(
    tmp_path: Path,
) -> None:
    left, acting = f"800.{os.getpid()}", f"801.{os.getpid()}"
    await killed_worker(tmp_path, left, acting)
    [before] = sleeping(left)
    async with a_life(tmp_path) as driver:
        assert sleeping(left) == [before]
        assert sleeping(acting) == []
        assert "act_left" in {each.owner for each in the_environment(driver).processes()}
        assert await said(driver, "cat /tmp/file", "act_2") == "kept\n"
        # Its output is read again, so a process that logs goes on.
        ticks = await said(driver, "ps -o pid= -C sleep | wc -l", "act_3")
        assert int(ticks) >= 1
        await driver.remove_environment(TRAJECTORY)
        assert sleeping(left) == []


@pytest.mark.parametrize("damage", ["record", "pipe", "init"])
async def test_what_cannot_be_adopted_is_ended(tmp_path: Path, damage: str) -> None:
    left, acting = f"802.{os.getpid()}", f"803.{os.getpid()}"
    await killed_worker(tmp_path, left, acting)
    [folder] = (tmp_path / "state" / "environments").iterdir()
    if damage == "record":
        (folder / RECORD).unlink()
    elif damage == "pipe":
        (folder / "control" / "status").unlink()
    else:
        record = (folder / RECORD).read_text()
        pid = int(record.partition('"pid":')[2].partition(",")[0])
        os.kill(pid, signal.SIGSTOP)
    async with a_life(tmp_path) as driver:
        assert sleeping(left) == []
        with pytest.raises(NoEnvironment):
            the_environment(driver)
        assert await said(driver, "echo again", "act_2") == "again\n"
    assert sleeping(left) == []


async def test_an_orderly_end_keeps_environments_where_the_node_says_so(tmp_path: Path) -> None:
    left = f"804.{os.getpid()}"
    async with a_life(tmp_path, environment_keep="true") as driver:
        await said(driver, f"sleep {left} &", "act_1")
        await until_asleep(f"sleep {left}")
        [before] = sleeping(left)
    assert sleeping(left) == [before]
    async with a_life(tmp_path) as driver:
        assert sleeping(left) == [before]
        assert await said(driver, "echo here", "act_2") == "here\n"
    assert sleeping(left) == []


async def test_no_history_leaves_a_process_a_group_or_a_folder(tmp_path: Path) -> None:
    """Random openings, commands, kills, crashes, and ends of environments."""
    choice = random.Random(18)
    mark = f"805.{os.getpid()}"
    keys = [TrajectoryKey(f"lab/trj-{n}") for n in range(3)]
    async with AsyncExitStack() as stack:
        driver = await stack.enter_async_context(a_life(tmp_path, environment_keep="true"))
        for step in range(40):
            key = choice.choice(keys)
            match choice.randrange(5):
                case 0:
                    script = f"sleep {mark} & setsid sleep {mark} & exit 1"
                    await run_in(driver, key, script, step)
                case 1:
                    await run_in(driver, key, f"sleep {mark}", step, timeout_seconds=0.05)
                case 2:
                    await run_in(driver, key, "kill -9 $PPID; sleep 0.05", step)
                case 3:
                    await driver.remove_environment(key)
                case _:
                    await stack.aclose()
                    driver = await stack.enter_async_context(
                        a_life(tmp_path, environment_keep="true")
                    )
        for key in keys:
            await driver.remove_environment(key)
        assert driver.environments is not None
        assert driver.environments.all() == []
        assert sleeping(mark) == []
        assert list((tmp_path / "state" / "environments").iterdir()) == []
    name = driver_name(tmp_path)
    assert [each for kind in ("cpuset", "pids", "memory") for each in groups(kind, name)] == []


async def run_in(
    driver: ProcessDriver,
    key: TrajectoryKey,
    script: str,
    step: int,
    timeout_seconds: float | None = None,
) -> None:
    trajectory = key.partition("/")[2]
    order = an_order(
        "sh", "-c", script, name=f"act_{step}", trajectory=trajectory,
        timeout_seconds=timeout_seconds,
    )  # fmt: skip
    await driver.run(order, lambda: None)


def driver_name(directory: Path) -> str:
    return ProcessTagger.load(directory / "state" / "driver.key").name


def groups(kind: str, name: str) -> list[str]:
    found = []
    for parent, directories, _ in os.walk(f"/sys/fs/cgroup/{kind}"):
        found += [f"{parent}/{each}" for each in directories if each.startswith(name)]
    return found
