"""Warm containers: ready before they are needed, without a trajectory until then."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from domain.action import EnvironmentSpec
from domain.ports import RunOrder
from managers.cpu.containers import ContainerDriver, docker_engine
from tests.conformance.containers.conftest import WAYS_OF_TIER, a_driver
from tests.conformance.containers.test_container_lifetimes import owned
from tests.conformance.driver import TRAJECTORY, an_order
from tests.docker_engine import DockerEngine

pytestmark = pytest.mark.slow


@pytest.fixture(params=WAYS_OF_TIER)
async def driver(
    engine: DockerEngine, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[ContainerDriver]:
    driver = a_driver(engine, tmp_path, request.param, warm="2")
    await driver.open()
    yield driver
    await driver.remove_environment(TRAJECTORY)
    await driver.close()
    assert owned_after_close(engine, driver_owner(tmp_path)) == [], (
        "what waited is deleted with the driver"
    )


def driver_owner(directory: Path) -> str:
    return (directory / "state" / "owner").read_text()


def owned_after_close(engine: DockerEngine, owner: str) -> list[str]:
    with engine.client() as client:
        found = client.containers(all=True, filters={"label": f"tangram.owner={owner}"})
    return [each["Id"] for each in found]


async def until_ready(driver: ContainerDriver, count: int) -> None:
    """Return when so many containers wait for a trajectory."""
    async with asyncio.timeout(120):
        while True:
            environments = driver.containers()
            if sum(not each.trajectory and each.pid > 0 for each in environments) == count:
                return
            await asyncio.sleep(0.02)


async def test_a_first_action_takes_a_container_that_waits_and_its_files_are_there(
    engine: DockerEngine, driver: ContainerDriver
) -> None:
    await until_ready(driver, 2)
    waited = {each.container for each in driver.containers()}
    await driver.put_file(TRAJECTORY, "in/data", b"from before\n")
    command = ("sh", "-c", "cat in/data; echo out > out")
    report = await driver.run(an_order(*command), lambda: None)
    assert report.result is not None
    assert report.result.stdout == "from before\n"
    assert await driver.get_file(TRAJECTORY, "out", 10) == b"out\n"
    [taken] = [each for each in driver.containers() if each.trajectory]
    assert taken.container in waited
    await until_ready(driver, 2)
    assert len(owned(engine, driver)) == 3


async def test_its_memory_is_set_when_it_is_taken(
    engine: DockerEngine, driver: ContainerDriver
) -> None:
    await until_ready(driver, 2)
    spec = EnvironmentSpec(memory_bytes=64 * 2**20)
    await driver.run(RunOrder(an_order("true").action, (), 1, spec), lambda: None)
    [taken] = [each for each in driver.containers() if each.trajectory]
    with engine.client() as client:
        host = client.inspect_container(taken.container)["HostConfig"]
    assert host["Memory"] == host["MemorySwap"] == 64 * 2**20


async def test_one_that_does_not_suit_is_not_taken(driver: ContainerDriver) -> None:
    await until_ready(driver, 2)
    waited = {each.container for each in driver.containers()}
    spec = EnvironmentSpec(ttl_seconds=86_400 * 30)
    await driver.run(RunOrder(an_order("true").action, (), 1, spec), lambda: None)
    [made] = [each for each in driver.containers() if each.trajectory]
    assert made.container not in waited


async def test_one_that_died_while_it_waited_is_not_taken(
    engine: DockerEngine, driver: ContainerDriver
) -> None:
    await until_ready(driver, 2)
    with engine.client() as client:
        for each in owned(engine, driver):
            client.kill(each["Id"])
    await driver.maintain()
    report = await driver.run(an_order("echo", "fresh"), lambda: None)
    assert report.result is not None
    assert report.result.stdout == "fresh\n"


@pytest.mark.parametrize("way", WAYS_OF_TIER)
async def test_as_many_as_the_pool_asks_for_now(
    engine: DockerEngine, tmp_path: Path, way: str
) -> None:
    driver = a_driver(engine, tmp_path, way)
    await driver.open()
    try:
        driver.prepared.keep_warm({"": 2})
        async with asyncio.timeout(120):
            while not any(each.kept == 2 for each in driver.prepared.warm_facts().values()):
                await asyncio.sleep(0.02)
        waited = {each.container for each in driver.containers()}
        report = await driver.run(an_order("echo", "ran"), lambda: None)
        assert report.result is not None
        [taken] = [each for each in driver.containers() if each.trajectory]
        assert taken.container in waited
        async with asyncio.timeout(120):
            while next(iter(driver.prepared.warm_facts().values())).made < 3:
                await asyncio.sleep(0.02)
        [facts] = driver.prepared.warm_facts().values()
        assert (facts.wanted, facts.kept, facts.taken, facts.made) == (2, 2, 1, 3)
        driver.prepared.keep_warm({})
        await until_ready(driver, 0)
    finally:
        await driver.remove_environment(TRAJECTORY)
        await driver.close()


async def test_a_missing_image_is_named_as_the_problem_and_holds_no_other_up(
    engine: DockerEngine, tmp_path: Path
) -> None:
    driver = a_driver(engine, tmp_path, "direct")
    await driver.open()
    try:
        driver.prepared.keep_warm({"missing.invalid/none:1": 1, "": 1})
        await until_ready(driver, 1)
        async with asyncio.timeout(120):
            while not driver.prepared.warm_facts().get("missing.invalid/none:1"):
                await asyncio.sleep(0.02)
            while not driver.prepared.warm_facts()["missing.invalid/none:1"].problem:
                await asyncio.sleep(0.02)
    finally:
        await driver.close()


async def test_one_that_ends_before_its_shell_answers_is_made_again(
    engine: DockerEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Less than the driver's patience of 120 s: the engine keeps the stream of such a container open."""
    driver = a_driver(engine, tmp_path, "direct")
    await driver.open()
    attach, killed = docker_engine.DockerEngine.attach, list[str]()

    async def attach_late(self: docker_engine.DockerEngine, container: str) -> socket.socket:
        if not killed:
            killed.append(container)
            with engine.client() as client:
                client.kill(container)
        return await attach(self, container)

    monkeypatch.setattr(docker_engine.DockerEngine, "attach", attach_late)
    try:
        driver.prepared.keep_warm({"": 1})
        async with asyncio.timeout(60):
            while not any(each.kept for each in driver.prepared.warm_facts().values()):
                await asyncio.sleep(0.02)
        assert killed
        assert killed[0] not in {each.container for each in driver.containers()}
    finally:
        await driver.close()
