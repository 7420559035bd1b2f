"""Forks of containers: copies of all files, those that were installed outside of the workspace included."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from domain.action import EnvironmentSpec, Outcome
from domain.errors import Conflict
from domain.ids import TrajectoryKey
from domain.ports import DriverContext
from domain.ports.sessions import SessionSpec
from managers.cpu.containers import ContainerDriver
from tests.conformance.containers.conftest import WAYS, a_driver, crash
from tests.conformance.driver import TRAJECTORY, an_order
from tests.conformance.forking import CHILD, OTHER, a_fork
from tests.docker_engine import IMAGE, DockerEngine

pytestmark = pytest.mark.slow


#: Where the layers of containers are: on a disk for each environment, or where the engine keeps them.
LAYERS = {"disk": "auto", "engine": "watched"}


@pytest.fixture(params=LAYERS)
def layers(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def driver(
    engine: DockerEngine, tmp_path: Path, way: str, layers: str
) -> AsyncIterator[ContainerDriver]:
    given = {
        "docker_host": engine.host, "docker_image": IMAGE, "docker_way": way,
        "docker_grace_seconds": "0.1", "environment_disks": LAYERS[layers],
    }  # fmt: skip
    driver = ContainerDriver(DriverContext("n1", tmp_path / "state", {}, given))
    await driver.open()
    yield driver
    await driver.close()


async def said(driver: ContainerDriver, script: str, trajectory: TrajectoryKey = TRAJECTORY) -> str:
    name = trajectory.partition("/")[2]
    order = an_order("sh", "-c", script, name=f"act_{name}", trajectory=name)
    report = await driver.run(order, lambda: None)
    assert report.outcome is Outcome.COMPLETED, report
    assert report.result is not None
    return report.result.stdout


def fork_images(engine: DockerEngine, driver: ContainerDriver) -> int:
    """Count the images of the driver's forks."""
    with engine.client() as client:
        return len(client.images(filters={"label": f"tangram.owner={driver.owner}"}))


async def test_a_fork_has_what_was_installed_outside_of_the_workspace(
    driver: ContainerDriver, engine: DockerEngine
) -> None:
    await said(
        driver, "echo 1 >/opt.txt; rm /etc/motd 2>/dev/null; mkdir /tmp/d; echo w >w; chmod 600 w"
    )
    report = await driver.fork_environment(a_fork(TRAJECTORY, CHILD, OTHER))
    assert report.way == "copied"
    assert 0 < report.frozen_seconds <= report.seconds
    await said(driver, "echo 2 >/opt.txt; echo 2 >w")
    for child in (CHILD, OTHER):
        look = "cat /opt.txt w; stat -c %a w; ls -d /tmp/d; echo changed >/opt.txt"
        assert await said(driver, look, child) == "1\nw\n600\n/tmp/d\n"
    assert await said(driver, "cat /opt.txt w") == "2\n2\n"
    for each in (TRAJECTORY, CHILD, OTHER):
        await driver.remove_environment(each)
    assert fork_images(engine, driver) == 0


async def test_a_container_that_changed_its_workspace_alone_needs_no_image(
    driver: ContainerDriver, engine: DockerEngine
) -> None:
    await said(driver, "echo 1 >a")
    await driver.fork_environment(a_fork(TRAJECTORY, CHILD))
    assert await said(driver, "cat a", CHILD) == "1\n"
    assert fork_images(engine, driver) == 0


async def test_a_fork_of_a_fork_before_its_first_action_has_the_files_of_both(
    driver: ContainerDriver,
) -> None:
    await said(driver, "echo 1 >/opt.txt")
    await driver.fork_environment(a_fork(TRAJECTORY, CHILD))
    await driver.fork_environment(a_fork(CHILD, OTHER))
    await driver.remove_environment(TRAJECTORY)
    await driver.remove_environment(CHILD)
    assert await said(driver, "cat /opt.txt; echo 2 >/opt2.txt", OTHER) == "1\n"
    await driver.fork_environment(a_fork(OTHER, CHILD))
    assert await said(driver, "cat /opt.txt /opt2.txt", CHILD) == "1\n2\n"


@pytest.mark.parametrize("way", ["direct"])
async def test_a_container_with_programs_is_forked_on_request_alone(
    driver: ContainerDriver,
) -> None:
    await said(driver, "echo 1 >a; (while :; do date >tick; done) & sleep 600 &")
    with pytest.raises(Conflict, match="on_busy=copy"):
        await driver.fork_environment(a_fork(TRAJECTORY, CHILD))
    assert not driver._open_tools().site.workspaces.of(CHILD).exists()
    await driver.fork_environment(a_fork(TRAJECTORY, CHILD, on_busy="copy"))
    assert await said(driver, "cat a", CHILD) == "1\n"
    assert (
        await said(
            driver, 'a=$(cat tick); until [ "$a" != "$(cat tick)" ]; do sleep 0.1; done; echo on'
        )
        == "on\n"
    )
    await driver.remove_environment(TRAJECTORY)


@pytest.mark.parametrize("way", ["direct"])
async def test_an_idle_session_does_not_hinder_a_fork(driver: ContainerDriver) -> None:
    await driver.sessions.open(TRAJECTORY, SessionSpec("main"), EnvironmentSpec())
    await driver.fork_environment(a_fork(TRAJECTORY, CHILD))
    assert await said(driver, "echo there", CHILD) == "there\n"


@pytest.mark.parametrize("way", ["direct"])
async def test_forks_outlive_their_driver_with_their_image(
    engine: DockerEngine, tmp_path: Path, way: str
) -> None:
    first = a_driver(engine, tmp_path, way)
    await first.open()
    await said(first, "echo 1 >/opt.txt")
    await first.fork_environment(a_fork(TRAJECTORY, CHILD))
    await first.close()
    second = a_driver(engine, tmp_path, way)
    await second.open()
    assert await said(second, "cat /opt.txt", CHILD) == "1\n"
    await second.close()


@pytest.mark.parametrize("way", WAYS)
async def test_a_container_that_a_dead_predecessor_had_frozen_goes_on(
    engine: DockerEngine, tmp_path: Path, way: str
) -> None:
    first = a_driver(engine, tmp_path, way)
    await first.open()
    await said(first, "echo 1 >a")
    forking, [environment] = first._forking, first.containers()
    assert forking is not None
    paused = forking.paused(environment, a_fork(TRAJECTORY, CHILD))
    await paused.__aenter__()
    await crash(first)
    second = a_driver(engine, tmp_path, way)
    await second.open()
    order = an_order("cat", "a", name="act_2")
    report = await second.run(order, lambda: None)
    assert report.result is not None, report
    assert report.result.stdout == "1\n"
    await second.close()
