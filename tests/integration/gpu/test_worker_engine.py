"""A node runs the engine of a fleet's worker as long as its action: on its chunk, with plain variables, and no longer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import psutil
import pytest

from domain.action import Action, ExecSpec, Kind, Outcome
from domain.allocation import Allocation
from domain.fleet_engines import WorkerProcess
from domain.ids import ActionId, ResourceId
from domain.inventory import ResourceInventory
from domain.ports import DriverContext, RunOrder, RunReport
from managers.gpu.driver import GpuDriver
from scheduler.runtime.node.routing import DriverRouting

GPUS = ResourceInventory(2000, ((0, 1),), oversubscribed=True, memory_bytes=2**30)


def an_order(*command: str, env: Mapping[str, str] | None = None) -> RunOrder:
    action = Action(
        id=ActionId("act_1"), project="default", task="fleet-m", kind=Kind.EXEC,
        cost={"gpu": (2000,)}, exec=ExecSpec(command, env=dict(env or {})),
        engine=WorkerProcess("m", "own-2x-1", 20123),
    )  # fmt: skip
    return RunOrder(action, (Allocation(ResourceId("gpu:n1"), 2000, (0, 1)),))


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[GpuDriver]:
    context = DriverContext(
        "n1", tmp_path, {"gpu": GPUS}, {"door": "0.0.0.0:7411"},
        open_secret=lambda text: text.removeprefix("sealed:"),
    )  # fmt: skip
    driver = GpuDriver(context)
    await driver.open()
    yield driver
    await driver.close()


async def run(driver: GpuDriver, order: RunOrder) -> RunReport:
    assert DriverRouting([driver]).of(order) is driver
    return await driver.run(order, lambda: None)


async def test_an_engine_sees_its_chunk_and_its_end_is_reported_with_its_last_words(
    driver: GpuDriver, tmp_path: Path
) -> None:
    said = 'echo "$CUDA_VISIBLE_DEVICES $TOKEN $HOME {host} {port} {gpus} {\\"a\\": 1}"; exit 3'
    report = await run(driver, an_order("sh", "-c", said, env={"TOKEN": "sealed:value"}))

    folder = tmp_path / "engines/m/own-2x-1"
    words = f"0,1 value {folder} 0.0.0.0 20123 2"
    assert report.outcome is Outcome.COMPLETED
    assert report.result is not None
    assert report.result.exit_code == 3
    assert (report.detail or "").startswith(f"the engine ended with exit status 3: {words}")

    await run(driver, an_order("true"))
    assert words in (folder / "former.log").read_text()
    assert (folder / "output.log").read_text() == ""


async def test_a_program_that_is_not_there_ends_its_action_at_once(driver: GpuDriver) -> None:
    report = await run(driver, an_order("no-such-engine", "{port}"))

    assert report.outcome is Outcome.COMPLETED
    assert "'no-such-engine' cannot be started: No such file" in (report.detail or "")


async def test_a_stop_ends_all_that_an_engine_started(driver: GpuDriver, tmp_path: Path) -> None:
    command = ("sh", "-c", "sleep 600 & echo $! > pid; wait")
    running = asyncio.create_task(run(driver, an_order(*command)))
    written = tmp_path / "engines/m/own-2x-1/pid"
    async with asyncio.timeout(60):
        while not written.exists() or not written.read_text().strip():
            await asyncio.sleep(0.01)
    child = int(written.read_text())

    driver.stop(ActionId("act_1"), Outcome.CANCELLED, "it is not declared any more")
    report = await running
    assert (report.outcome, report.detail) == (Outcome.CANCELLED, "it is not declared any more")
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


async def test_an_engine_without_a_chunk_or_a_command_is_refused(driver: GpuDriver) -> None:
    order = an_order("true")
    report = await run(driver, RunOrder(order.action, ()))

    assert report.outcome is Outcome.INFRA_FAILED
    assert "needs a chunk" in (report.detail or "")
