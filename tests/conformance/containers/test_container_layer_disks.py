"""Containers on a disk of their own: real engines, file systems and loop devices."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import tarfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from domain.action import EnvironmentSpec, Outcome
from domain.errors import StorageFull
from domain.ids import TrajectoryKey
from domain.ports import DriverContext, ExecResult, RunOrder
from managers.cpu.containers import ContainerDriver
from managers.cpu.containers.docker_engine import DockerEngine as Client
from managers.cpu.containers.docker_engine import DockerRefused
from managers.cpu.tree.loop_disks import LoopDisks
from tests.conformance.containers.conftest import crash
from tests.conformance.driver import FOREVER, TRAJECTORY, Performance, an_order
from tests.docker_engine import IMAGE, DockerEngine, missing_programs

MIB = 2**20
QUOTA = 24 * MIB
ON_DISK = "limited by a file system for each environment"
#: Files of a mebibyte, until a write fails; the number that fitted.
FILL = "mkdir -p {0}; n=0; while head -c 1048576 /dev/zero > {0}/f$n; do n=$((n+1)); done; echo $n"
SECOND = TrajectoryKey("lab/trj-2")


@pytest.fixture(scope="module", autouse=True)
def loops(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip the module where no disk can be mounted."""
    disks = LoopDisks(tmp_path_factory.mktemp("probe"), 1000)
    folder = tmp_path_factory.mktemp("probed")
    if os.geteuid() != 0 or not disks.make(folder, MIB):
        pytest.skip("no loop device can be mounted here")
    disks.remove(folder)
    disks.close()


def a_driver(engine: DockerEngine, state: Path, way: str, **settings: str) -> ContainerDriver:
    given = {
        "docker_host": engine.host, "docker_image": IMAGE, "docker_way": way,
        "docker_grace_seconds": "0.1", "docker_patience_seconds": "120",
        "environment_disk_bytes": str(QUOTA), "environment_files": "2000", **settings,
    }  # fmt: skip
    return ContainerDriver(DriverContext("n1", state / "state", {}, given))


@pytest.fixture
async def driver(engine: DockerEngine, tmp_path: Path, way: str) -> AsyncIterator[ContainerDriver]:
    driver = a_driver(engine, tmp_path, way)
    await driver.open()
    yield driver
    for trajectory in (TRAJECTORY, SECOND):
        await driver.remove_environment(trajectory)
    await driver.close()
    left_nothing(engine, tmp_path)


def left_nothing(engine: DockerEngine, directory: Path) -> None:
    """Assert that no mount, no loop device and no file of a disk is left.

    While a driver is open its state directory may be a mount.
    """
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    assert [each for each in points if each.startswith(f"{directory}/state/")] == []
    assert list((directory / "state").glob("disks/*")) == []
    assert list((directory / "state").glob("workspaces/*")) == []
    with engine.client() as client:
        assert client.volumes()["Volumes"] in (None, [])
    # The kernel detaches a loop device some time after its last use.
    until = time.monotonic() + 30
    while f"{directory}/" in (devices := loop_devices()):
        assert time.monotonic() < until, devices
        time.sleep(0.05)


def loop_devices() -> str:
    """Return the loop devices and their files."""
    known = subprocess.run(["losetup", "--list"], capture_output=True, text=True, check=True)
    return known.stdout


async def run(
    driver: ContainerDriver, script: str, trajectory: str | None = "trj-1", **spec: Any
) -> ExecResult:
    order = an_order("sh", "-c", script, trajectory=trajectory)
    async with asyncio.timeout(240):
        report = await driver.run(
            RunOrder(order.action, (), 1, EnvironmentSpec(**spec)), lambda: None
        )
    assert report.outcome is Outcome.COMPLETED, report
    assert report.result is not None
    return report.result


@pytest.mark.parametrize("folder", ["/workspace", "/", "/tmp", "/var/tmp"])
async def test_a_write_beyond_the_quota_fails_and_the_action_goes_on(
    driver: ContainerDriver, folder: str
) -> None:
    assert driver.protection.disk == ON_DISK
    neighbour = Performance(driver, an_order(*FOREVER, name="act_2", trajectory="trj-2"))
    await neighbour.started.wait()

    result = await run(driver, FILL.format(folder))

    assert "No space left on device" in result.stderr
    assert QUOTA // MIB - 2 <= int(result.stdout) <= QUOTA // MIB + 4
    assert not neighbour.task.done()
    again = await run(
        driver, f"rm {folder}/f*; head -c 1048576 /dev/zero > /var/tmp/g && echo fits"
    )
    assert again.stdout == "fits\n"


@pytest.mark.parametrize("way", ["direct"])
async def test_workspace_and_layer_are_on_one_disk(driver: ContainerDriver) -> None:
    await run(driver, FILL.format("/var/tmp"))
    result = await run(driver, "head -c 1048576 /dev/zero > one")
    assert "No space left on device" in result.stderr


@pytest.mark.parametrize("way", ["direct"])
async def test_a_declared_disk_has_its_size(driver: ContainerDriver) -> None:
    result = await run(driver, FILL.format("/srv"), disk_bytes=8 * MIB)
    assert "No space left on device" in result.stderr
    assert 6 <= int(result.stdout) <= 12


@pytest.mark.parametrize("way", ["direct"])
async def test_the_number_of_files_is_bounded(driver: ContainerDriver) -> None:
    script = "mkdir -p /srv/m; n=0; while true > /srv/m/f$n; do n=$((n+1)); done; echo $n"
    result = await run(driver, script)
    assert "No space left on device" in result.stderr
    assert 1900 <= int(result.stdout) <= 2064


@pytest.mark.parametrize("way", ["direct"])
async def test_files_that_an_engine_mounts_at_etc_are_on_the_disk(driver: ContainerDriver) -> None:
    files = "/etc/hosts /etc/hostname /etc/resolv.conf"
    seen = await run(driver, f"cat /etc/hostname; grep -c localhost /etc/hosts; ls {files}")
    assert seen.stdout.split() == ["tangram", "2", *sorted(files.split())]

    script = f"for f in {files}; do cat /dev/zero >> $f; done; cat {files} | wc -c"
    result = await run(driver, script)

    assert "No space left on device" in result.stderr
    assert int(result.stdout) < QUOTA + 4 * MIB


async def test_nothing_is_left_of_a_removed_environment(
    engine: DockerEngine, driver: ContainerDriver, tmp_path: Path
) -> None:
    await run(driver, "touch /var/tmp/there there")
    [environment] = driver.containers()
    with engine.client() as client:
        data = client.inspect_container(environment.container)["GraphDriver"]["Data"]
    assert Path(data["UpperDir"], "var", "tmp", "there").exists()
    layer = Path(data["UpperDir"]).parent

    await driver.remove_environment(TRAJECTORY)

    left_nothing(engine, tmp_path)
    assert not layer.exists()
    assert (await run(driver, "ls; ls /var/tmp")).stdout == ""


async def test_an_action_without_a_trajectory_leaves_no_disk(
    engine: DockerEngine, driver: ContainerDriver, tmp_path: Path
) -> None:
    result = await run(driver, FILL.format("/srv"), trajectory=None)
    assert "No space left on device" in result.stderr
    async with asyncio.timeout(120):
        while driver.containers() or any((tmp_path / "state" / "disks").iterdir()):
            await asyncio.sleep(0.05)
    left_nothing(engine, tmp_path)


async def archived(pieces: AsyncIterator[bytes]) -> list[str]:
    content = b"".join([piece async for piece in pieces])
    with tarfile.open(fileobj=io.BytesIO(content)) as members:
        return sorted(each.name.removeprefix("./") for each in members if each.isfile())


@pytest.mark.parametrize("way", ["direct"])
async def test_files_are_transferred_before_and_after_the_first_action(
    driver: ContainerDriver,
) -> None:
    await driver.put_file(TRAJECTORY, "given", b"in\n")
    assert await driver.get_file(TRAJECTORY, "given", 100) == b"in\n"

    result = await run(driver, "cat given; echo out > made; echo root > /var/tmp/made")

    assert result.stdout == "in\n"
    assert await driver.get_file(TRAJECTORY, "made", 100) == b"out\n"
    files = await driver.files(TRAJECTORY)
    assert await archived(await files.pack("/workspace")) == ["given", "made"]
    assert await driver.get_file(TRAJECTORY, "/var/tmp/made", 100) == b"root\n"


@pytest.mark.parametrize("way", ["direct"])
async def test_a_transfer_into_a_full_disk_is_refused(driver: ContainerDriver) -> None:
    await run(driver, FILL.format("/srv") + "; while head -c 4096 /dev/zero >> rest; do :; done")
    with pytest.raises(StorageFull):
        await driver.put_file(TRAJECTORY, "given", b"x" * MIB)


async def test_a_successor_adopts_environments_with_their_disks(
    engine: DockerEngine, tmp_path: Path, way: str
) -> None:
    driver = a_driver(engine, tmp_path, way)
    await driver.open()
    await run(driver, "echo kept > /var/tmp/kept; echo in > file")
    await crash(driver)

    successor = a_driver(engine, tmp_path, way)
    await successor.open()

    try:
        assert (await run(successor, "cat /var/tmp/kept file")).stdout == "kept\nin\n"
        assert "No space left on device" in (await run(successor, FILL.format("/srv"))).stderr
    finally:
        await successor.remove_environment(TRAJECTORY)
        await successor.close()
    left_nothing(engine, tmp_path)


@pytest.mark.parametrize("way", ["direct"])
async def test_files_can_be_fetched_after_a_start_of_the_machine(
    engine: DockerEngine, tmp_path: Path, way: str
) -> None:
    """Its containers have ended then, and its disks are not mounted."""
    driver = a_driver(engine, tmp_path, way)
    await driver.open()
    await run(driver, "echo kept > file")
    [environment] = driver.containers()
    await driver.close()
    with engine.client() as client:
        client.kill(environment.container)
        client.wait(environment.container)
    subprocess.run(["umount", str(environment.folder)], check=True)  # noqa: ASYNC221

    successor = a_driver(engine, tmp_path, way)
    await successor.open()

    try:
        assert await successor.get_file(TRAJECTORY, "file", 100) == b"kept\n"
        later = await successor.run(an_order("true"), lambda: None)
        assert "environment is lost" in (later.detail or "")
    finally:
        await successor.remove_environment(TRAJECTORY)
        await successor.close()
    left_nothing(engine, tmp_path)


@pytest.mark.parametrize("way", ["direct"])
async def test_the_largest_writer_is_cleared_with_its_disk(
    engine: DockerEngine, driver: ContainerDriver, tmp_path: Path
) -> None:
    script = f"head -c {8 * MIB} /dev/zero > /var/tmp/one; {' '.join(FOREVER)}"
    writer = Performance(driver, an_order("sh", "-c", script))
    async with asyncio.timeout(120):
        while not any(each.used_bytes >= 8 * MIB for each in await driver.disk_usage()):
            await asyncio.sleep(0.05)
    [environment] = driver.containers()

    await driver.clear_environment(environment.name, "the disk is full")

    assert (await writer.task).outcome is Outcome.INFRA_FAILED
    left_nothing(engine, tmp_path)


@pytest.fixture
def with_volumes(engine: DockerEngine) -> Iterator[str]:
    """An image that declares two volumes, with a file in one of them."""
    with engine.client() as client:
        made = client.create_container(
            IMAGE, ["sh", "-c", "mkdir -p /data; echo of-image > /data/x"]
        )
        client.start(made["Id"])
        client.wait(made["Id"])
        changes = ["VOLUME /data", "VOLUME /cache/of/it"]
        client.commit(made["Id"], "tangram-volumes", "1", changes="\n".join(changes))
        client.remove_container(made["Id"], v=True)
    yield "tangram-volumes:1"
    engine.clear()
    with engine.client() as client:
        client.remove_image("tangram-volumes:1", force=True)


@pytest.mark.parametrize("way", ["direct"])
async def test_volumes_of_an_image_are_on_the_disk(
    driver: ContainerDriver, with_volumes: str
) -> None:
    result = await run(driver, "cat /data/x; " + FILL.format("/cache/of/it"), image=with_volumes)
    assert result.stdout.startswith("of-image\n")
    assert "No space left on device" in result.stderr
    assert int(result.stdout.split()[-1]) <= QUOTA // MIB + 4


async def test_volumes_of_an_image_are_watched_without_a_disk(
    engine: DockerEngine, tmp_path: Path, with_volumes: str
) -> None:
    driver = a_driver(engine, tmp_path, "direct", environment_disks="watched")
    await driver.open()
    assert driver.protection.disk == "watched (the node's setting environment_disks is watched)"
    script = FILL.format("/cache/of/it").replace("; do", " && sleep 0.02; do") + "; sleep 60"
    order = an_order("sh", "-c", f"ulimit -f 200000; {script}")
    spec = EnvironmentSpec(image=with_volumes)
    try:
        async with asyncio.timeout(240):
            report = await driver.run(RunOrder(order.action, (), 1, spec), lambda: None)
        assert report.outcome is Outcome.CANCELLED
        assert f"disk quota of {QUOTA} bytes exceeded" in (report.detail or "")
    finally:
        await driver.remove_environment(TRAJECTORY)
        await driver.close()
    left_nothing(engine, tmp_path)


async def test_a_waiting_container_is_taken_with_its_disk(
    engine: DockerEngine, tmp_path: Path
) -> None:
    driver = a_driver(engine, tmp_path, "direct", docker_warm="1")
    await driver.open()
    try:
        await ready(driver)
        [waiting] = [each.container for each in driver.containers()]
        await driver.put_file(TRAJECTORY, "given", b"in\n")

        result = await run(driver, "cat given; " + FILL.format("/srv"))

        assert result.stdout.startswith("in\n")
        assert "No space left on device" in result.stderr
        [taken] = [each for each in driver.containers() if each.trajectory]
        assert taken.container == waiting
        assert taken.disk == tmp_path / "state" / "workspaces" / taken.folder.name
        await ready(driver)
        await run(driver, "true", trajectory="trj-2", disk_bytes=8 * MIB)
        [apart] = [each for each in driver.containers() if each.trajectory == SECOND]
        assert os.statvfs(apart.folder).f_blocks * 4096 < 12 * MIB
    finally:
        for trajectory in (TRAJECTORY, SECOND):
            await driver.remove_environment(trajectory)
        await driver.close()
    left_nothing(engine, tmp_path)


async def ready(driver: ContainerDriver) -> None:
    """Return when a container waits for a trajectory."""
    async with asyncio.timeout(120):
        while not any(not each.trajectory and each.pid for each in driver.containers()):
            await asyncio.sleep(0.02)


@pytest.fixture(scope="module")
def apart() -> Iterator[DockerEngine]:
    """An engine in a mount namespace of its own, where disks that are made later are not seen."""
    if missing := missing_programs():
        pytest.skip(f"not installed: {', '.join(missing)}")
    engine = DockerEngine(remapped=True).start()
    engine.load_image()
    yield engine
    engine.stop()


@pytest.mark.slow
async def test_quotas_are_watched_where_the_engine_does_not_see_disks(
    apart: DockerEngine, tmp_path: Path
) -> None:
    driver = a_driver(apart, tmp_path, "direct")
    await driver.open()
    try:
        assert driver.protection.disk.startswith("watched (")
        assert list((tmp_path / "state").glob("disks/*")) == []
        await driver.put_file(TRAJECTORY, "given", b"in\n")
        script = f"cat given; mkdir -p /srv; for n in $(seq 40); do head -c {MIB} /dev/zero > /srv/f$n; sleep 0.02; done; sleep 60"
        report = await driver.run(an_order("sh", "-c", script), lambda: None)
        assert report.outcome is Outcome.CANCELLED
        assert report.result is not None
        assert report.result.stdout == "in\n"
        assert f"disk quota of {QUOTA} bytes exceeded" in (report.detail or "")
    finally:
        await driver.remove_environment(TRAJECTORY)
        await driver.close()
    left_nothing(apart, tmp_path)


@pytest.mark.usefixtures("each_tries")
async def test_the_engine_is_asked_once_to_limit_layers_of_containers_without_a_disk(
    engine: DockerEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    create: Callable[..., Any] = Client.create

    async def recorded(self: Client, name: str, config: Any, host_config: Any) -> str:
        asked.append(host_config["storage_opt"])
        made: str = await create(self, name, config, host_config)
        return made

    monkeypatch.setattr(Client, "create", recorded)
    driver = a_driver(engine, tmp_path, "direct", environment_disks="watched")
    await driver.open()
    await run(driver, "true")
    await driver.remove_environment(TRAJECTORY)
    text = driver.protection.disk
    await driver.close()

    wanted = {"size": str(QUOTA)}
    if "limited by the engine" in text:
        assert asked == [wanted, wanted]
    else:
        assert asked == [wanted, None, None]


@pytest.mark.parametrize("way", ["direct"])
@pytest.mark.usefixtures("each_tries")
async def test_a_layer_that_cannot_be_moved_fails_once_disks_have_worked(
    driver: ContainerDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that gives environments disks never runs one without."""
    monkeypatch.setattr("managers.cpu.containers.layer_disks.link_layer", _refuse)
    report = await driver.run(an_order("true"), lambda: None)
    assert report.outcome is Outcome.INFRA_FAILED
    assert "no disk for it" in (report.detail or "")
    assert driver.protection.disk == ON_DISK


def _refuse(*_: object) -> None:
    raise DockerRefused("no disk for it")
