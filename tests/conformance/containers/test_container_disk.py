"""The watched disk that a container may use, in its workspace and in its own layer, on a real engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from domain.action import Outcome
from domain.ports import DiskUsing, DriverContext
from managers.cpu.containers import ContainerDriver
from tests.conformance.driver import FOREVER, Performance, an_order
from tests.conformance.process.test_process_disk import HIDE
from tests.docker_engine import IMAGE, DockerEngine

_MIB = 2**20
_QUOTA = 16 * _MIB


@pytest.fixture
async def small(engine: DockerEngine, tmp_path: Path) -> AsyncIterator[ContainerDriver]:
    """A driver whose environments may use little disk."""
    given = {
        "docker_host": engine.host, "docker_image": IMAGE, "docker_way": "direct",
        "docker_grace_seconds": "0.1", "environment_disk_bytes": str(_QUOTA),
        "environment_files": "500", "environment_disks": "watched",
    }  # fmt: skip
    driver = ContainerDriver(DriverContext("n1", tmp_path / "state", {}, given))
    await driver.open()
    yield driver
    await driver.close()


def writing(folder: str, mebibytes: int) -> tuple[str, ...]:
    """Write files of a mebibyte slowly, and wait."""
    script = (
        f"for n in $(seq {mebibytes}); do head -c {_MIB} /dev/zero > {folder}/big$n; sleep 0.02; done;"
        " sleep 60"
    )
    return ("sh", "-c", script)


@pytest.mark.parametrize("folder", ["/workspace", "/var/tmp", "/tmp"])
async def test_an_action_above_its_disk_quota_is_ended(small: ContainerDriver, folder: str) -> None:
    report = await small.run(an_order(*writing(folder, 40)), lambda: None)
    assert report.outcome is Outcome.CANCELLED
    assert f"disk quota of {_QUOTA} bytes exceeded" in (report.detail or "")


async def test_an_action_with_too_many_files_is_ended(small: ContainerDriver) -> None:
    script = "mkdir /opt/many; cd /opt/many; for n in $(seq 2000); do : > $n; done; sleep 60"
    report = await small.run(an_order("sh", "-c", script), lambda: None)
    assert report.outcome is Outcome.CANCELLED
    assert "disk quota of 500 files exceeded" in (report.detail or "")


async def test_deleted_files_count_while_they_are_open(small: ContainerDriver) -> None:
    report = await small.run(an_order("python3", "-c", HIDE), lambda: None)
    assert report.outcome is Outcome.CANCELLED
    assert f"disk quota of {_QUOTA} bytes exceeded" in (report.detail or "")


async def test_no_file_is_larger_than_the_quota(small: ContainerDriver) -> None:
    order = an_order(
        "sh", "-c", f"head -c {2 * _QUOTA} /dev/zero > /var/tmp/one; wc -c /var/tmp/one"
    )
    report = await small.run(order, lambda: None)
    assert report.result is not None
    assert report.result.stdout.startswith(f"{_QUOTA} ")


async def test_an_action_below_its_quota_goes_on(small: ContainerDriver) -> None:
    order = an_order("sh", "-c", f"head -c {_MIB} /dev/zero > /var/tmp/one; sleep 1; echo done")
    report = await small.run(order, lambda: None)
    assert report.outcome is Outcome.COMPLETED


async def test_the_largest_writer_is_cleared_when_the_disk_is_full(small: ContainerDriver) -> None:
    assert isinstance(small, DiskUsing)
    script = f"head -c {8 * _MIB} /dev/zero > /var/tmp/one; {' '.join(FOREVER)}"
    writer = Performance(small, an_order("sh", "-c", script, name="act_w", trajectory="trj-w"))
    other = Performance(small, an_order(*FOREVER, name="act_o", trajectory="trj-o"))
    await writer.started.wait()
    await other.started.wait()
    used: dict[str, int] = {}
    async with asyncio.timeout(60):
        while not any(bytes_now >= 8 * _MIB for bytes_now in used.values()):
            used = {each.name: each.grown_bytes for each in await small.disk_usage()}
            await asyncio.sleep(0.05)
    largest = max(used, key=lambda name: used[name])

    await small.clear_environment(largest, "the disk is full")

    report = await writer.task
    assert report.outcome is Outcome.INFRA_FAILED
    assert "the disk is full" in (report.detail or "")
    again = await small.run(an_order("true", name="act_2", trajectory="trj-w"), lambda: None)
    assert "the disk is full" in (again.detail or "")
    assert not other.task.done()
