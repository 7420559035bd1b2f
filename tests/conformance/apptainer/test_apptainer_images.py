"""Images by Apptainer: built at their first use from definitions, kept as the mode says, and their errors."""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from domain.action import EnvironmentSpec, Outcome
from domain.ids import TrajectoryKey
from domain.ports import RunOrder, RunReport
from managers.cpu.process import ProcessDriver
from tests.apptainer_stand_in import calls, is_sif
from tests.conformance.apptainer.conftest import containers
from tests.conformance.driver import Performance, an_order
from tests.conformance.forking import a_fork
from tests.small_image import root_tar

#: Its base is copied from programs of this machine, as the archives of other tests are.
TEMPLATE = """\
Bootstrap: localimage
From: base.tar

%environment
    export TASK={{ tag }}
    export PATH=/usr/local/bin:/bin
%post
    mkdir -p /srv/task
    echo "{{ tag }}" >/srv/task/name
    SCRIPT
"""


@pytest.fixture
def definitions(tmp_path: Path) -> Path:
    folder = tmp_path / "definitions"
    folder.mkdir()
    (folder / "base.tar").write_bytes(root_tar())
    define(folder)
    return folder


def define(folder: Path, name: str = "swe", script: str = "true") -> None:
    (folder / f"{name}.def.j2").write_text(TEMPLATE.replace("SCRIPT", script))


@pytest.fixture
async def driver(tmp_path: Path, definitions: Path) -> AsyncIterator[ProcessDriver]:
    driver = containers(tmp_path)
    await driver.open()
    yield driver
    await driver.close()


def order(
    script: str, name: str = "act_1", trajectory: str | None = "trj-1", image: str = "swe:one"
) -> RunOrder:
    made = an_order("sh", "-c", script, name=name, trajectory=trajectory)
    return replace(made, environment=EnvironmentSpec(image=image))


async def said(
    driver: ProcessDriver,
    script: str,
    name: str = "act_1",
    trajectory: str | None = "trj-1",
    image: str = "swe:one",
) -> str:
    report = await driver.run(order(script, name, trajectory, image), lambda: None)
    assert report.result is not None, report
    assert report.result.exit_code == 0, report
    return report.result.stdout


async def failed(driver: ProcessDriver, image: str) -> str:
    report: RunReport = await driver.run(order("true", image=image), lambda: None)
    assert report.outcome is Outcome.INFRA_FAILED
    assert not report.never_started, "it is not tried again elsewhere"
    return report.detail or ""


def builds(directory: Path) -> list[list[str]]:
    return [each["argv"] for each in calls(directory / "program", "build")]


async def test_an_image_is_built_at_its_first_use_and_once(
    driver: ProcessDriver, tmp_path: Path
) -> None:
    script = "cat /srv/task/name; echo $TASK $PATH; echo x >/srv/task/mine; touch /srv/boss/new"
    texts = await asyncio.gather(
        *(said(driver, script, f"act_{n}", f"trj-{n}") for n in range(3)),
        said(driver, script, "act_alone", None),
    )

    assert set(texts) == {"one\none /usr/local/bin:/bin\n"}
    [[verb, option, target, source]] = builds(tmp_path)
    assert (verb, option) == ("build", "--fakeroot")
    assert target.endswith(".draft")
    assert source.endswith(".def")
    [file] = (tmp_path / "state" / "apptainer" / "cache").glob("*.sif")
    assert is_sif(file)
    assert not list((tmp_path / "state" / "apptainer").glob("*.def"))


async def test_another_tag_is_another_image(driver: ProcessDriver, tmp_path: Path) -> None:
    assert await said(driver, "echo $TASK", "act_1", "trj-1") == "one\n"
    assert await said(driver, "echo $TASK", "act_2", "trj-2", image="swe:two") == "two\n"
    assert len(builds(tmp_path)) == 2


async def test_a_changed_definition_is_used_from_the_next_environment_on(
    driver: ProcessDriver, definitions: Path
) -> None:
    await said(driver, "true")
    define(definitions, script="echo changed >/srv/task/name")

    assert await said(driver, "cat /srv/task/name", "act_2") == "one\n"
    assert await said(driver, "cat /srv/task/name", "act_3", "trj-3") == "changed\n"


async def test_a_build_that_fails_reports_the_end_of_what_it_said(
    driver: ProcessDriver, definitions: Path, tmp_path: Path
) -> None:
    define(definitions, script="echo 'no such package: frobnicate' >&2; exit 3")
    detail = await failed(driver, "swe:one")

    assert "the build of image 'swe:one' failed with status 255" in detail
    assert "no such package: frobnicate" in detail
    assert not list((tmp_path / "state" / "apptainer" / "cache").iterdir())
    again = await failed(driver, "swe:one")
    assert "no such package: frobnicate" in again
    assert "it is tried again after 60 s" in again
    assert len(builds(tmp_path)) == 1
    define(definitions)
    assert await said(driver, "cat /srv/task/name", "act_2") == "one\n"


async def test_an_image_that_is_built_and_does_not_run_is_no_image(
    driver: ProcessDriver, definitions: Path
) -> None:
    define(definitions, script="rm /bin/sh")
    assert "was built and does not run" in await failed(driver, "swe:one")


async def test_an_unknown_image_names_what_is_defined(driver: ProcessDriver) -> None:
    detail = await failed(driver, "unknown:1")
    assert "image 'unknown:1' is not on this node: import it with" in detail
    assert "which defines swe" in detail


async def test_a_tag_of_more_than_harmless_characters_builds_nothing(
    driver: ProcessDriver, tmp_path: Path
) -> None:
    report = await driver.run(order("true", image="swe:a;b"), lambda: None)
    assert report.outcome is Outcome.INFRA_FAILED
    assert "its tag has other characters" in (report.detail or "")
    assert builds(tmp_path) == []


async def test_a_cache_that_cannot_be_written_fails_the_action_with_the_cure(
    tmp_path: Path, definitions: Path
) -> None:
    driver = containers(tmp_path, apptainer_cache="/sys/kernel/tangram")
    await driver.open()
    detail = await failed(driver, "swe:one")
    await driver.close()
    assert "cannot be written" in detail
    assert "TANGRAM_APPTAINER_CACHE" in detail


async def test_a_cancelled_action_does_not_wait_for_its_build(
    driver: ProcessDriver, definitions: Path, tmp_path: Path
) -> None:
    define(definitions, script="sleep 600")
    performance = Performance(driver, order("true"))
    async with asyncio.timeout(120):
        while not builds(tmp_path):
            await asyncio.sleep(0.01)
    driver.stop(order("true").id, Outcome.CANCELLED, "enough")
    async with asyncio.timeout(60):
        report = await performance.task
    assert (report.outcome, report.never_started) == (Outcome.CANCELLED, True)


async def test_builds_end_with_their_driver_by_their_tags(
    tmp_path: Path, definitions: Path
) -> None:
    seconds = f"600.{abs(hash(str(tmp_path))) % 10**9:09d}"
    define(definitions, script=f"sleep {seconds}")
    driver = containers(tmp_path)
    await driver.open()
    performance = Performance(driver, order("true"))
    async with asyncio.timeout(120):
        while not _running(seconds):
            await asyncio.sleep(0.01)
    await driver.close()
    await performance.task
    assert not _running(seconds)
    assert not list((tmp_path / "state" / "apptainer" / "cache").iterdir())


def _running(seconds: str) -> str:
    words = ["pgrep", "-f", f"^sleep {shlex.quote(seconds)}$"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout


async def test_a_build_that_takes_too_long_is_ended(tmp_path: Path, definitions: Path) -> None:
    define(definitions, script="echo waiting for a mirror; sleep 600")
    driver = containers(tmp_path, apptainer_build_seconds="3")
    await driver.open()
    detail = await failed(driver, "swe:one")
    await driver.close()
    assert "took longer than 3 s, which TANGRAM_APPTAINER_BUILD_SECONDS permits" in detail


async def test_each_environment_has_a_scratch_image_of_its_own_which_is_deleted_with_it(
    tmp_path: Path, definitions: Path
) -> None:
    driver = containers(tmp_path, apptainer_cache_mode="scratch")
    await driver.open()
    texts = await asyncio.gather(
        *(said(driver, "cat /srv/task/name", f"act_{n}", f"trj-{n}") for n in (1, 2)),
        said(driver, "cat /srv/task/name", "act_alone", None),
    )

    assert texts == ["one\n"] * 3
    assert len(builds(tmp_path)) == 3
    own = {_digest(driver, number) for number in (1, 2)}
    assert {path.parent.name for path in _stored(tmp_path)} == own
    assert len(own) == 2
    assert driver.trees.images.names() == [], "no other environment finds it"
    await driver.fork_environment(a_fork(TrajectoryKey("lab/trj-1"), TrajectoryKey("lab/trj-3")))
    await driver.remove_environment(TrajectoryKey("lab/trj-1"))
    assert await said(driver, "cat /srv/task/name", "act_3", "trj-3") == "one\n"
    for number in (2, 3):
        await driver.remove_environment(TrajectoryKey(f"lab/trj-{number}"))
    assert _stored(tmp_path) == []
    assert not list((tmp_path / "state" / "apptainer" / "cache").iterdir())
    await driver.close()


async def test_a_scratch_image_whose_action_was_withdrawn_is_of_the_next_one_or_deleted(
    tmp_path: Path, definitions: Path
) -> None:
    driver = containers(tmp_path, apptainer_cache_mode="scratch")
    await driver.open()
    for number in (1, 2):
        await _withdrawn(driver, tmp_path, f"trj-{number}")
    async with asyncio.timeout(120):
        while len(_stored(tmp_path)) < 2:
            await asyncio.sleep(0.01)

    assert await said(driver, "cat /srv/task/name", "act_2", "trj-1") == "one\n"
    assert len(builds(tmp_path)) == 2
    await driver.remove_environment(TrajectoryKey("lab/trj-2"))
    assert [path.parent.name for path in _stored(tmp_path)] == [_digest(driver, 1)]
    await driver.remove_environment(TrajectoryKey("lab/trj-1"))
    assert _stored(tmp_path) == []
    await driver.close()


async def _withdrawn(driver: ProcessDriver, place: Path, trajectory: str) -> None:
    """Cancel the first action of a trajectory while the image is built for it."""
    before = len(builds(place))
    given = order("true", trajectory=trajectory)
    performance = Performance(driver, given)
    async with asyncio.timeout(120):
        while len(builds(place)) == before:
            await asyncio.sleep(0.01)
    driver.stop(given.id, Outcome.CANCELLED, "enough")
    report = await performance.task
    assert report.never_started


async def test_a_scratch_image_without_an_environment_is_deleted_by_the_next_worker(
    tmp_path: Path, definitions: Path
) -> None:
    driver = containers(tmp_path, apptainer_cache_mode="scratch", environment_keep="true")
    await driver.open()
    await said(driver, "true", "act_1", "trj-1")
    await _withdrawn(driver, tmp_path, "trj-2")
    async with asyncio.timeout(120):
        while len(_stored(tmp_path)) < 2:
            await asyncio.sleep(0.01)
    await driver.close()
    successor = containers(tmp_path, apptainer_cache_mode="scratch")
    await successor.open()
    assert len(_stored(tmp_path)) == 1
    await successor.remove_environment(TrajectoryKey("lab/trj-1"))
    assert _stored(tmp_path) == []
    await successor.close()


async def test_what_a_killed_worker_was_building_is_deleted_by_the_next_one(
    tmp_path: Path, driver: ProcessDriver
) -> None:
    await said(driver, "true")
    await driver.close()
    folder = tmp_path / "state" / "apptainer"
    left = [
        folder / "00.def", folder / "00.log", folder / "build-temp-1" / "rootfs" / "file",
        folder / "cache" / ".swe-1.sif.00.draft", folder / "cache" / ".swe-00.scratch.sif",
    ]  # fmt: skip
    for path in left:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half")
    successor = containers(tmp_path)
    await successor.open()
    assert [path for path in left if path.exists()] == []
    assert not (folder / "build-temp-1").exists()
    assert await said(successor, "cat /srv/task/name", "act_2", "trj-2") == "one\n"
    await successor.close()
    assert len(builds(tmp_path)) == 1, "a whole file stays"


async def test_a_cache_above_its_limit_loses_images_that_no_environment_uses(
    tmp_path: Path, definitions: Path
) -> None:
    driver = containers(tmp_path, apptainer_cache_bytes="1")
    await driver.open()
    for tag in ("used", "unused"):
        await said(driver, "true", f"act_{tag}", f"trj-{tag}", image=f"swe:{tag}")
    await driver.remove_environment(TrajectoryKey("lab/trj-unused"))
    for path in (tmp_path / "state" / "apptainer" / "cache").glob("*.sif"):
        os.utime(path, ns=(0, path.stat().st_mtime_ns))
    await said(driver, "true", "act_3", "trj-3", image="swe:new")

    assert [each.name for each in driver.trees.images.names()] == ["swe:new", "swe:used"]
    assert len(_stored(tmp_path)) == 2
    assert len(list((tmp_path / "state" / "apptainer" / "cache").glob("*.sif"))) == 2
    assert await said(driver, "cat /srv/task/name", "act_4", "trj-used", "swe:used") == "used\n"
    await driver.close()


def _digest(driver: ProcessDriver, number: int) -> str:
    assert driver.environments is not None
    name = driver.environments.of(TrajectoryKey(f"lab/trj-{number}")).name
    record = driver.trees.known(name)
    assert record is not None
    return record.digest


def _stored(directory: Path) -> list[Path]:
    return list((directory / "state" / "images").glob("*/tree"))


async def test_two_workers_with_one_cache_build_a_locked_image_once(
    tmp_path: Path, definitions: Path
) -> None:
    cache = tmp_path / "shared"
    places = [tmp_path / "first", tmp_path / "second"]
    async with AsyncExitStack() as stack:
        drivers = []
        for place in places:
            place.mkdir()
            driver = containers(
                place, apptainer_cache=str(cache), apptainer_cache_mode="lock",
                apptainer_definitions=str(definitions),
            )  # fmt: skip
            await driver.open()
            stack.push_async_callback(driver.close)
            drivers.append(driver)
        texts = await asyncio.gather(*(said(each, "cat /srv/task/name") for each in drivers))
    assert texts == ["one\n", "one\n"]
    assert sum(len(builds(place)) for place in places) == 1
    assert len(list(cache.glob("*.sif"))) == 1


async def test_a_prepared_environment_of_an_image_becomes_that_of_a_trajectory(
    tmp_path: Path, definitions: Path
) -> None:
    driver = containers(tmp_path, environment_warm="swe:one=1")
    await driver.open()
    assert await said(driver, "cat /srv/task/name", "act_0", "trj-0") == "one\n"
    async with asyncio.timeout(120):
        while not driver.images.warm_facts()["swe:one"].kept:
            await asyncio.sleep(0.01)
    assert await said(driver, "cat /srv/task/name; echo x >mine") == "one\n"
    facts = driver.images.warm_facts()["swe:one"]
    assert (facts.taken, await said(driver, "cat mine", "act_2")) == (1, "x\n")
    await driver.close()
