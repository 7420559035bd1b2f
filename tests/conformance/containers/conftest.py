"""A real engine for all tests here, and drivers on it, one for each way of running an action."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from domain.ports import DriverContext
from managers.cpu.containers import ContainerDriver, survey
from managers.cpu.containers.environment_store import Site
from managers.cpu.egress.proxy import EgressProxy
from tests.docker_engine import IMAGE, DockerEngine, missing_programs, unmount_below
from tests.tiers import by_tier

WAYS = ("direct", "api")
#: The conformance suite of drivers tries both in every run, the other tests that of production alone but with `--long`.
WAYS_OF_TIER = by_tier(WAYS[:1], WAYS[:1], WAYS)
_TRY = survey._try


@pytest.fixture(scope="session")
def engine() -> Iterator[DockerEngine]:
    """The engine that all tests share; each looks at its own containers alone."""
    if missing := missing_programs():
        pytest.skip(f"not installed: {', '.join(missing)}")
    engine = DockerEngine().start()
    engine.load_image()
    yield engine
    engine.stop()


@pytest.fixture(scope="session")
def tried_engine(engine: DockerEngine) -> Iterator[DockerEngine]:
    """Try a container on the engine once, not whenever a driver opens: that takes as long as most tests."""
    seen = set[object]()

    async def try_first(site: Site) -> None:
        what = (site.engine.host, site.settings)
        if site.engine.host != engine.host or what not in seen:
            await _TRY(site)
        seen.add(what)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(survey, "_try", try_first)
        yield engine


@pytest.fixture
def each_tries(tried_engine: DockerEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each driver try a container when it opens, as on a node."""
    monkeypatch.setattr(survey, "_try", _TRY)


@pytest.fixture(scope="module", autouse=True)
def cleared(tried_engine: DockerEngine) -> Iterator[None]:
    """Leave no container to later tests: a hundred idle ones slow them down."""
    yield
    tried_engine.clear()


@pytest.fixture(autouse=True)
def without_mounts(tmp_path: Path) -> Iterator[None]:
    """Unmount the disks of environments that a test leaves: pytest cannot delete a directory with a mount."""
    yield
    unmount_below(tmp_path)


def a_driver(
    engine: DockerEngine,
    directory: Path,
    way: str,
    proxy: EgressProxy | None = None,
    **settings: str,
) -> ContainerDriver:
    """Return a driver with its state below ``directory``; it kills soon, so that tests are quick."""
    given = {
        "docker_host": engine.host,
        "docker_image": IMAGE,
        "docker_way": way,
        "docker_grace_seconds": "0.1",
        "docker_patience_seconds": "120",
        "docker_max_processes": "128",
        **{f"docker_{name}": value for name, value in settings.items()},
    }
    return ContainerDriver(DriverContext("n1", directory / "state", {}, given), proxy)


async def crash(driver: ContainerDriver) -> None:
    """Let a driver die without a word: nothing of what it runs is ended."""
    tools = driver._tools
    assert tools is not None
    for chore in driver._chores:
        chore.cancel()
    for way, name in ((tools.backend, "shrink"), (tools.backend, "end")):
        setattr(way, name, _do_nothing)
    tasks = driver._runs.tasks()
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    for environment in driver.containers():
        if environment.shell is not None:
            environment.shell._lose()
    await asyncio.to_thread(tools.marks.close)
    await driver._engine.close()
    os.close(driver._lock)


async def _do_nothing(*_: object) -> None:
    """What a dead driver does."""


@pytest.fixture(params=WAYS_OF_TIER)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def driver(engine: DockerEngine, tmp_path: Path, way: str) -> AsyncIterator[ContainerDriver]:
    driver = a_driver(engine, tmp_path, way)
    await driver.open()
    assert driver.isolation == f"docker-{way}"
    yield driver
    await driver.close()


def processes_with(text: str) -> list[int]:
    """Return the processes of this machine that have ``text`` on their command line."""
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and text in Path(f"/proc/{name}/cmdline").read_text():
                found.append(int(name))
        except OSError:
            continue
    return found


@pytest.fixture
def sleep() -> Iterator[str]:
    """A sleep with a duration of its own; none may run when the test is over."""
    seconds = f"600.{uuid.uuid4().int % 10**12:012d}"
    yield f"sleep {seconds}"
    assert processes_with(seconds) == []
