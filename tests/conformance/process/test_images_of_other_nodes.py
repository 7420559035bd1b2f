"""An image that a node lacks is pulled once, however many environments name it at one moment."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import pytest

from domain.action import EnvironmentSpec, Outcome
from domain.errors import NotFound, Unavailable
from domain.ports import DriverContext, RunOrder, RunReport
from managers.cpu.process import ProcessDriver
from tests.conformance.driver import an_order
from tests.conformance.forking import a_snapshot, begins_from
from tests.conformance.isolations import isolations
from tests.small_image import docker_tar, root_tar

pytestmark = pytest.mark.skipif("bwrap" not in isolations(), reason="no sandbox works here")


class Pulls:
    """The archives that nodes get, piece by piece; each waits until it may go on."""

    def __init__(self) -> None:
        self.archives: dict[str, bytes] = {}
        self.begun: list[str] = []
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.failing = 0

    async def fetch(self, name: str) -> AsyncGenerator[bytes, None]:
        self.begun.append(name)
        if name not in self.archives:
            raise NotFound("it is not stored")
        yield self.archives[name][:1000]
        await self.may_go_on.wait()
        if self.failing:
            self.failing -= 1
            raise Unavailable("the store broke off")
        yield self.archives[name][1000:]


@pytest.fixture
def pulls() -> Pulls:
    return Pulls()


@pytest.fixture
async def driver(tmp_path: Path, pulls: Pulls) -> AsyncIterator[ProcessDriver]:
    context = DriverContext("n1", tmp_path, {}, {"isolation": "bwrap"}, fetch_image=pulls.fetch)
    driver = ProcessDriver(context)
    await driver.open()
    yield driver
    await driver.close()


async def act(driver: ProcessDriver, number: int, image: str = "small") -> RunReport:
    words = "sh", "-c", "cat /etc/of-the-image; echo $OF_IMAGE"
    order = an_order(*words, name=f"act_{number}", trajectory=f"trj-{number}")
    order.action.environment = EnvironmentSpec(image)
    return await driver.run(order, lambda: None)


async def test_environments_that_name_an_image_at_one_moment_share_one_pull(
    driver: ProcessDriver, pulls: Pulls
):
    pulls.archives["small"] = docker_tar(root_tar())
    pulls.may_go_on.clear()
    running = [asyncio.ensure_future(act(driver, number)) for number in range(12)]
    async with asyncio.timeout(60):
        while not pulls.begun:
            await asyncio.sleep(0)
    waiting = asyncio.ensure_future(driver.trees.arrivals.ensure("small"))
    await asyncio.sleep(0)
    waiting.cancel()  # one that gives up ends the pull of no other
    pulls.may_go_on.set()
    reports = await asyncio.gather(*running)
    later = await act(driver, 12)

    assert pulls.begun == ["small"]
    assert {each.outcome for each in (*reports, later)} == {Outcome.COMPLETED}
    said = {each.result.stdout for each in (*reports, later) if each.result is not None}
    assert said == {"image\nyes\n"}


async def test_a_pull_that_fails_is_repeated_by_the_next_environment(
    driver: ProcessDriver, pulls: Pulls
):
    pulls.archives["small"] = docker_tar(root_tar())
    pulls.failing = 1
    refused = await act(driver, 1)
    missing = await act(driver, 2, image="unknown")
    found = await act(driver, 3)

    assert refused.outcome is Outcome.INFRA_FAILED
    assert "image 'small' could not be pulled: the store broke off" in (refused.detail or "")
    assert "tangram image import unknown" in (missing.detail or "")
    assert found.outcome is Outcome.COMPLETED
    assert pulls.begun == ["small", "unknown", "small"]


async def test_an_exported_image_is_the_same_image_elsewhere(
    driver: ProcessDriver, pulls: Pulls, tmp_path: Path
):
    own = await driver.images.import_archive("small", _pieces(docker_tar(root_tar())))
    exported = [b"".join([each async for each in driver.images.export("small")]) for _ in range(2)]
    pulls.archives["there"] = exported[0]
    await driver.trees.arrivals.ensure("there")
    there = driver.trees.images.find("there")

    assert hashlib.sha256(exported[0]).digest() == hashlib.sha256(exported[1]).digest()
    assert exported[0][136:147] == b"0" * 11, "no time of its making is in it"
    assert there.digest == own.digest
    assert there.env == {"PATH": "/bin", "OF_IMAGE": "yes"}
    with pytest.raises(NotFound, match="tangram image import"):
        await anext(driver.images.export("nowhere"))


async def test_the_image_below_a_snapshot_is_pulled_with_it(
    driver: ProcessDriver, pulls: Pulls, tmp_path: Path
):
    pulls.archives["small"] = docker_tar(root_tar())
    first = order_of(1, "echo added >>/etc/of-the-image")
    assert (await driver.run(first, lambda: None)).outcome is Outcome.COMPLETED
    await driver.take_snapshot(a_snapshot())

    async def fetch(project: str, name: str) -> AsyncGenerator[bytes, None]:
        async for piece in driver.export_snapshot(project, name):
            yield piece

    context = DriverContext(
        "n2", tmp_path / "n2", {}, {"isolation": "bwrap"}, fetch_image=pulls.fetch, fetch_snapshot=fetch
    )  # fmt: skip
    second = ProcessDriver(context)
    await second.open()
    try:
        begun = await second.run(begins_from("kept"), lambda: None)
        said = await second.run(order_of(2, "cat /etc/of-the-image"), lambda: None)
    finally:
        await second.close()

    assert begun.outcome is Outcome.COMPLETED, begun.detail
    assert said.result is not None
    assert said.result.stdout == "image\nadded\n"
    assert pulls.begun == ["small", "small"]


def order_of(number: int, line: str) -> RunOrder:
    order = an_order("sh", "-c", line, name=f"act_s{number}", trajectory=f"trj-{number}")
    order.action.environment = EnvironmentSpec("small")
    return order


async def _pieces(content: bytes) -> AsyncIterator[bytes]:
    yield content
