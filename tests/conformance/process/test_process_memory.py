"""Memory of an action: limited with all its processes and files in memory, at nothing else's expense."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from domain.action import EnvironmentSpec, Outcome
from domain.ids import ActionId, TrajectoryKey
from domain.ports import RunOrder, RunReport
from managers.cpu.process import ProcessDriver
from managers.cpu.process import driver as driver_module
from managers.cpu.process.invocation import OOM_SCORE
from tests.conformance.conftest import Shell
from tests.conformance.driver import FOREVER, Performance, an_order
from tests.conformance.isolations import a_driver

MIB = 2**20
LIMIT = 64 * MIB
EAT = f"x = bytearray({300 * MIB}); print(len(x))"


@pytest.fixture
def limited(driver: ProcessDriver) -> ProcessDriver:
    """A driver that limits memory by control groups."""
    if driver.memory_protection != "limited by control groups":
        pytest.skip(driver.memory_protection)
    return driver


def a_small_order(*command: str, name: str = "act_1", trajectory: str | None = "trj-1") -> RunOrder:
    """Return an order whose environment may use 64 MiB."""
    order = an_order(*command, name=name, trajectory=trajectory)
    return RunOrder(order.action, (), 1, EnvironmentSpec(memory_bytes=LIMIT))


async def finished(driver: ProcessDriver, order: RunOrder) -> RunReport:
    async with asyncio.timeout(120):
        return await driver.run(order, lambda: None)


async def test_an_action_above_its_memory_ends_oom_killed_and_its_neighbour_goes_on(
    limited: ProcessDriver,
) -> None:
    neighbour = Performance(limited, a_small_order(*FOREVER, name="act_2", trajectory="trj-2"))
    await neighbour.started.wait()
    report = await finished(limited, a_small_order("python3", "-c", EAT))
    assert report.outcome is Outcome.OOM_KILLED
    assert f"may use {LIMIT} bytes, declare a higher environment.memory_bytes" in (
        report.detail or ""
    )
    assert not neighbour.task.done()
    limited.stop(ActionId("act_2"), Outcome.CANCELLED, "enough")
    assert (await neighbour.task).outcome is Outcome.CANCELLED


async def test_the_next_action_of_an_environment_has_its_memory_again(
    limited: ProcessDriver,
) -> None:
    assert (await finished(limited, a_small_order("python3", "-c", EAT))).outcome is (
        Outcome.OOM_KILLED
    )
    report = await finished(limited, a_small_order("python3", "-c", "bytearray(16 << 20)"))
    assert (report.outcome, report.detail) == (Outcome.COMPLETED, None)


async def test_memory_of_all_processes_counts_together(limited: ProcessDriver) -> None:
    # Each child alone is within the limit; the script ends with the first child that dies.
    eat = f"import time; x = b'x' * {40 * MIB}; time.sleep(600)"
    both = (
        "import os, subprocess, sys;"
        # Kept, because a Popen that is deleted waits for its child in place of os.wait.
        f"kept = [subprocess.Popen([sys.executable, '-c', {eat!r}]) for _ in range(2)];"
        "os.wait(); sys.exit(9)"
    )
    report = await finished(limited, a_small_order("python3", "-c", both))
    assert report.outcome is Outcome.OOM_KILLED


async def test_environments_together_stay_below_the_memory_of_their_node(
    tmp_path: Path, isolation: str
) -> None:
    """Each of two environments is within its own limit; their sum is above what the node offers."""
    driver = a_driver(tmp_path, isolation, memory_bytes=str(120 * MIB))
    await driver.open()
    try:
        if driver.memory is None:
            pytest.skip(driver.memory_protection)
        eat = f"import time; x = b'x' * {80 * MIB}; time.sleep(600)"
        orders = [
            RunOrder(
                an_order("python3", "-c", eat, name=f"act_{n}", trajectory=f"trj-{n}").action,
                (), 1, EnvironmentSpec(memory_bytes=100 * MIB),
            )
            for n in range(2)
        ]  # fmt: skip
        both = [asyncio.create_task(finished(driver, order)) for order in orders]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for order in orders:
            driver.stop(order.id, Outcome.CANCELLED, "enough")
        killed = [
            report for report in await asyncio.gather(*both) if "kernel" in str(report.detail)
        ]
        assert {report.outcome for report in killed} == {Outcome.OOM_KILLED}
        assert "all environments of this node together" in (killed[0].detail or "")
        assert (await finished(driver, an_order("true"))).outcome is Outcome.COMPLETED
    finally:
        await driver.close()


@pytest.mark.parametrize("isolation", ["bwrap"], indirect=True)
async def test_files_in_memory_count(limited: ProcessDriver) -> None:
    command = "head -c 200000000 /dev/zero > /dev/shm/big || exit 1; exit 0"
    report = await finished(limited, a_small_order("sh", "-c", command))
    refused = report.result is not None and report.result.exit_code == 1
    assert refused or report.outcome is Outcome.OOM_KILLED
    assert (await finished(limited, a_small_order("true"))).outcome is Outcome.COMPLETED


@pytest.mark.parametrize("isolation", ["bwrap"], indirect=True)
async def test_no_tmpfs_of_a_sandbox_exceeds_its_size(tmp_path: Path, isolation: str) -> None:
    sizes = {"environment_tmpfs_bytes": str(4 * MIB), "environment_trees": "images"}
    driver = a_driver(tmp_path, isolation, **sizes)
    await driver.open()
    try:
        # What a command can write to, and cannot: everything but its workspace.
        script = (
            "for d in / /tmp /dev/shm; do head -c 9000000 /dev/zero > $d/big 2>/dev/null;"
            " stat -c %s $d/big; done; echo x 2>/dev/null > /dev/x || echo refused;"
            " echo x > /dev/null && python3 -c 'import pty, mmap; pty.openpty(); mmap.mmap(-1, 9)'"
        )
        report = await finished(driver, an_order("sh", "-c", script))
    finally:
        await driver.close()
    assert report.result is not None
    assert report.result.stdout.split() == [*[str(4 * MIB)] * 3, "refused"]
    assert report.result.exit_code == 0


async def test_an_environment_that_declares_no_memory_is_limited_as_well(
    tmp_path: Path, isolation: str
) -> None:
    driver = a_driver(tmp_path, isolation, environment_memory_bytes=str(LIMIT))
    await driver.open()
    try:
        if driver.memory_protection != "limited by control groups":
            pytest.skip(driver.memory_protection)
        order = an_order("python3", "-c", EAT, trajectory=None)
        assert (await finished(driver, order)).outcome is Outcome.OOM_KILLED
    finally:
        await driver.close()


async def test_the_kernel_kills_an_action_before_anything_else(shell: Shell) -> None:
    report = await shell("cat /proc/self/oom_score_adj")
    assert report.result is not None
    assert report.result.stdout == f"{OOM_SCORE}\n"
    assert int(Path("/proc/self/oom_score_adj").read_text()) < OOM_SCORE


async def test_groups_are_removed_with_their_environments_and_with_the_driver(
    tmp_path: Path, isolation: str
) -> None:
    driver = a_driver(tmp_path, isolation)
    await driver.open()
    groups = driver.memory
    if groups is None:
        pytest.skip(driver.memory_protection)
    await finished(driver, a_small_order("true"))
    await finished(driver, a_small_order("true", name="act_2", trajectory=None))
    assert sum(each.is_dir() for each in groups.directory.iterdir()) == 1
    await driver.remove_environment(TrajectoryKey("lab/trj-1"))
    assert not any(each.is_dir() for each in groups.directory.iterdir())
    await driver.close()
    assert not groups.directory.exists()


async def test_processes_in_the_group_of_a_dead_driver_are_ended_by_the_next(
    tmp_path: Path, isolation: str
) -> None:
    driver = a_driver(tmp_path, isolation)
    await driver.open()
    groups = driver.memory
    await driver.close()
    if groups is None:
        pytest.skip(driver.memory_protection)
    left = groups.directory / "left"
    left.mkdir(parents=True)
    stray = await asyncio.create_subprocess_exec(*FOREVER)
    (left / "cgroup.procs").write_text(str(stray.pid))
    await driver_life(tmp_path, isolation)
    assert await stray.wait() == -9
    assert not left.exists()


async def driver_life(directory: Path, isolation: str) -> None:
    driver = a_driver(directory, isolation)
    await driver.open()
    await driver.close()


async def test_without_control_groups_an_action_above_its_memory_is_stopped(
    tmp_path: Path, isolation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("not permitted here")

    monkeypatch.setattr(driver_module, "open_memory_groups", refuse)
    driver = a_driver(tmp_path, isolation)
    await driver.open()
    try:
        assert driver.memory_protection == "watched, without control groups: not permitted here"
        eat = f"import os, time; x = b'x' * {300 * MIB}; time.sleep(600)"
        report = await finished(driver, a_small_order("python3", "-c", eat))
        assert report.outcome is Outcome.OOM_KILLED
        assert "declare a higher environment.memory_bytes" in (report.detail or "")
    finally:
        await driver.close()
