"""Containers live exactly as long as they should, whatever others do to them; foreign ones survive."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from domain.action import EnvironmentSpec, Outcome
from domain.errors import InvalidRequest, NotFound, Unavailable
from domain.ids import ActionId, TrajectoryKey
from domain.ports import ExecResult, RunOrder
from managers.cpu.containers import ContainerDriver, container_config
from managers.cpu.containers.cgroups import CgroupMounts
from tests.conformance.conftest import Shell
from tests.conformance.containers.conftest import a_driver, crash, processes_with
from tests.conformance.driver import FOREVER, TRAJECTORY, Performance, an_order
from tests.docker_engine import IMAGE, DockerEngine

Output = Callable[..., Awaitable[ExecResult]]

pytestmark = pytest.mark.slow


def owned(engine: DockerEngine, driver: ContainerDriver) -> list[dict[str, Any]]:
    """Return the containers that this driver made, as the engine tells them."""
    with engine.client() as client:
        label = f"{container_config.OWNER}={driver.owner}"
        return list(client.containers(all=True, filters={"label": label}))


async def test_a_trajectory_has_one_container_until_it_is_removed(
    engine: DockerEngine, driver: ContainerDriver
) -> None:
    for number in range(3):
        await driver.run(an_order("true", name=f"act_{number}"), lambda: None)
    [container] = owned(engine, driver)
    assert container["Labels"][container_config.TRAJECTORY] == TRAJECTORY
    assert container["Labels"][container_config.EXPIRES].isdigit()
    await driver.remove_environment(TRAJECTORY)
    assert owned(engine, driver) == []


async def test_an_action_without_a_trajectory_leaves_no_container(
    engine: DockerEngine, driver: ContainerDriver
) -> None:
    await driver.run(an_order("true", trajectory=None), lambda: None)
    async with asyncio.timeout(120):
        while owned(engine, driver):
            await asyncio.sleep(0.05)


async def test_a_removal_that_races_with_the_creation_leaves_nothing(
    engine: DockerEngine, driver: ContainerDriver
) -> None:
    performance = Performance(driver, an_order(*FOREVER))
    await asyncio.sleep(0.05)
    await driver.remove_environment(TRAJECTORY)
    assert (await performance.task).outcome is Outcome.CANCELLED
    assert owned(engine, driver) == []
    assert driver.containers() == []


async def test_a_container_is_safe_by_default(
    engine: DockerEngine, driver: ContainerDriver
) -> None:
    await driver.run(an_order("true"), lambda: None)
    [container] = owned(engine, driver)
    with engine.client() as client:
        host = client.inspect_container(container["Id"])["HostConfig"]
    assert host["NetworkMode"] == "none"
    assert host["CapDrop"] == ["ALL"]
    assert host["CapAdd"] is None
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert not host["Privileged"]
    assert host["PidsLimit"] == 128
    assert host["Memory"] == host["MemorySwap"] == 4 * 2**30
    assert {limit["Name"] for limit in host["Ulimits"]} == {"nofile", "fsize", "core"}
    assert not any("docker.sock" in bind for bind in host["Binds"])


async def test_inside_there_is_no_network_and_no_right_to_gain(output: Output) -> None:
    found = (
        await output("ls /sys/class/net; grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status")
    ).stdout
    assert found.split() == [
        "lo", "CapEff:", "0" * 16, "CapBnd:", "0" * 16, "NoNewPrivs:", "1",
    ]  # fmt: skip


async def test_a_read_only_image_leaves_the_workspace_and_tmp(
    engine: DockerEngine, tmp_path: Path, way: str
) -> None:
    driver = a_driver(engine, tmp_path, way, read_only="yes")
    await driver.open()
    script = "touch /workspace/x /tmp/x && ! touch /usr/x 2>/dev/null"
    report = await driver.run(an_order("sh", "-c", script), lambda: None)
    await driver.remove_environment(TRAJECTORY)
    await driver.close()
    assert report.result is not None
    assert report.result.exit_code == 0


@pytest.mark.usefixtures("each_tries")
async def test_the_engine_is_asked_where_control_groups_are_not_ours(
    engine: DockerEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("not below our parent")

    monkeypatch.setattr(CgroupMounts, "group_of", refuse)
    driver = a_driver(engine, tmp_path, "auto")
    await driver.open()
    assert driver.isolation == "docker-api"
    assert owned(engine, driver) == []
    await driver.close()
    with pytest.raises(Unavailable, match="not below our parent"):
        await a_driver(engine, tmp_path, "direct").open()


async def test_an_image_that_is_not_there_fails_before_the_start(driver: ContainerDriver) -> None:
    order = an_order("true")
    spec = EnvironmentSpec(image="no-such-image:1")
    report = await driver.run(RunOrder(order.action, (), 1, spec), lambda: None)
    assert (report.outcome, report.never_started) == (Outcome.INFRA_FAILED, True)
    assert "no-such-image:1" in (report.detail or "")


async def test_a_successor_adopts_environments_and_ends_what_ran(
    engine: DockerEngine, tmp_path: Path, way: str, sleep: str
) -> None:
    """1. An action leaves a file; another one runs. 2. The worker dies without a word.
    3. Its successor says what it ended, and the trajectory finds its container as it was."""
    driver = a_driver(engine, tmp_path, way)
    await driver.open()
    await driver.run(an_order("touch", "/tmp/kept", name="act_0"), lambda: None)
    performance = Performance(driver, an_order(*sleep.split()))
    async with asyncio.timeout(120):
        while not processes_with(sleep.split()[1]):
            await asyncio.sleep(0.01)
    await crash(driver)
    assert performance.starts == 1
    assert len(processes_with(sleep.split()[1])) == 1
    successor = a_driver(engine, tmp_path, way)
    leftovers = {each.action_id: each.ended for each in await successor.open()}
    assert leftovers == {ActionId("act_0"): False, ActionId("act_1"): True}
    report = await successor.run(an_order("ls", "/tmp/kept", name="act_2"), lambda: None)
    await successor.remove_environment(TRAJECTORY)
    await successor.close()
    assert report.result is not None
    assert report.result.stdout == "/tmp/kept\n"


async def test_the_outcome_is_unknown_when_the_container_was_removed_by_hand(
    engine: DockerEngine, driver: ContainerDriver
) -> None:
    performance = Performance(driver, an_order(*FOREVER))
    await performance.started.wait()
    with engine.client() as client:
        client.remove_container(owned(engine, driver)[0]["Id"], force=True)
    report = await performance.task
    assert report.outcome is Outcome.UNKNOWN
    later = await driver.run(an_order("true", name="act_2"), lambda: None)
    assert (later.outcome, later.never_started) == (Outcome.INFRA_FAILED, False)
    assert "environment is lost" in (later.detail or "")
    await driver.remove_environment(TRAJECTORY)
    fresh = await driver.run(an_order("true", name="act_3"), lambda: None)
    assert fresh.outcome is Outcome.COMPLETED


async def test_containers_without_an_owner_are_removed_and_foreign_ones_are_not(
    engine: DockerEngine, driver: ContainerDriver
) -> None:
    await driver.run(an_order("true"), lambda: None)
    [mine] = owned(engine, driver)
    labels = dict(mine["Labels"])
    foreign = {
        "tangram-0123456789abcdef": {},
        f"{mine['Names'][0].lstrip('/')}x": {container_config.ENVIRONMENT: "tangram-0"},
        "tangram-other": {
            container_config.OWNER: "another",
            container_config.EXPIRES: "99999999999",
        },
    }
    orphans = {
        "innocent-name": labels,
        "tangram-expired": {container_config.OWNER: "another", container_config.EXPIRES: "1"},
    }
    with engine.client() as client:
        for name, own in {**foreign, **orphans}.items():
            client.create_container(IMAGE, ["true"], name=name, labels=own)
        await driver.maintain()
        left = set(engine.containers())
        for name in foreign:
            client.remove_container(name, force=True)
    assert set(foreign) <= left
    assert mine["Names"][0].lstrip("/") in left
    assert not set(orphans) & left


async def test_an_environment_idle_for_too_long_is_removed_and_its_next_action_says_so(
    engine: DockerEngine, tmp_path: Path, way: str
) -> None:
    driver = a_driver(engine, tmp_path, way, idle_seconds="0.001")
    await driver.open()
    await driver.run(an_order("true"), lambda: None)
    await asyncio.sleep(0.01)
    await driver.maintain()
    assert owned(engine, driver) == []
    report = await driver.run(an_order("true", name="act_2"), lambda: None)
    await driver.remove_environment(TRAJECTORY)
    await driver.close()
    assert "idle" in (report.detail or "")


async def test_a_loss_is_remembered_over_restarts(
    engine: DockerEngine, tmp_path: Path, way: str
) -> None:
    driver = a_driver(engine, tmp_path, way)
    await driver.open()
    await driver.run(an_order("true"), lambda: None)
    with engine.client() as client:
        client.remove_container(owned(engine, driver)[0]["Id"], force=True)
    await driver.close()
    for number in range(2):
        successor = a_driver(engine, tmp_path, way)
        await successor.open()
        report = await successor.run(an_order("true", name=f"act_2{number}"), lambda: None)
        assert report.outcome is Outcome.INFRA_FAILED
        await successor.close()
    last = a_driver(engine, tmp_path, way)
    await last.open()
    await last.remove_environment(TrajectoryKey(TRAJECTORY))
    await last.close()
    assert list((tmp_path / "state" / "environments").glob("tangram-*")) == []


async def test_a_link_in_the_workspace_leads_into_the_container_alone(
    driver: ContainerDriver, shell: Shell, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the machine")
    await shell(f"ln -s {secret} link; ln -s / root; mkfifo pipe; ln -s /etc/hostname inside")
    for path in ("link", f"root{secret}"):
        with pytest.raises(NotFound):
            await driver.get_file(TRAJECTORY, path, 1000)
    await driver.put_file(TRAJECTORY, f"root{secret}", b"of the container")
    assert await driver.get_file(TRAJECTORY, "link", 1000) == b"of the container"
    await driver.put_file(TRAJECTORY, "link", b"replaces the link")
    with pytest.raises(InvalidRequest):
        await driver.get_file(TRAJECTORY, "pipe", 1000)
    hostname = await driver.get_file(TRAJECTORY, "inside", 1000)
    assert hostname.strip().decode() != Path("/etc/hostname").read_text().strip()
    assert secret.read_text() == "of the machine"


async def test_files_are_there_before_and_after_the_first_action(
    driver: ContainerDriver, output: Output
) -> None:
    await driver.put_file(TRAJECTORY, "in/data.txt", b"from outside\n")
    assert (await output("cat in/data.txt; echo out > out.txt")).stdout == "from outside\n"
    assert await driver.get_file(TRAJECTORY, "out.txt", 100) == b"out\n"
