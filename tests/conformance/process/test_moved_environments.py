"""Process drivers move quiet environments, with a sandbox and without; what is not quiet is refused with a code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from domain.action import EnvironmentSpec
from domain.errors import Conflict
from domain.moves import IN_MEMORY, PROCESS, SESSION
from domain.ports.sessions import SessionSpec
from managers.cpu.process import ProcessDriver
from tests.conformance.driver import TRAJECTORY
from tests.conformance.isolations import a_driver, isolations
from tests.conformance.moving import ORDER, MovingConformance, run


@pytest.mark.parametrize("isolation", isolations())
class TestProcessMoving(MovingConformance):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path, isolation: str) -> None:
        self.directory, self.isolation = tmp_path, isolation
        self.has_trees = isolation != "process"

    def make(self, node: str) -> ProcessDriver:
        return a_driver(self.directory / node, self.isolation)


@pytest.fixture
async def source(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[ProcessDriver]:
    """The driver of a node."""
    driver = a_driver(tmp_path / "n1", getattr(request, "param", "bwrap"))
    await driver.open()
    yield driver
    await driver.close()


@pytest.mark.skipif("bwrap" not in isolations(), reason="no bubblewrap here")
@pytest.mark.parametrize(
    ("command", "code"),
    [("sleep 600 > /dev/null 2>&1 &", PROCESS), ("echo 1 > /dev/shm/a", IN_MEMORY)],
)
async def test_what_a_snapshot_does_not_have_keeps_an_environment_where_it_is(
    source: ProcessDriver, command: str, code: str
):
    await run(source, command)
    with pytest.raises(Conflict) as refused:
        await source.moving.pack(ORDER)
    assert refused.value.code == code
    assert await source.snapshots() == []


@pytest.mark.skipif("bwrap" not in isolations(), reason="no bubblewrap here")
async def test_a_session_keeps_an_environment_where_it_is(source: ProcessDriver):
    await run(source, "true")
    spec = SessionSpec(name="s", shell=("sh",), pty=False)
    await source.sessions.open(TRAJECTORY, spec, EnvironmentSpec())
    with pytest.raises(Conflict) as refused:
        await source.moving.pack(ORDER)
    assert refused.value.code == SESSION
    await source.sessions.close(TRAJECTORY, "s")
    await source.moving.pack(ORDER)


@pytest.mark.parametrize("source", ["process"], indirect=True)
async def test_without_a_sandbox_a_program_in_the_workspace_keeps_it_where_it_is(
    source: ProcessDriver,
):
    await run(source, "echo 1 > a")
    folder = source._workspaces.files(source._workspaces.of(TRAJECTORY))
    program = await asyncio.create_subprocess_exec("sleep", "600", cwd=folder)
    with pytest.raises(Conflict, match="sleep") as refused:
        await source.moving.pack(ORDER)
    assert refused.value.code == PROCESS
    program.kill()
    await program.wait()
    await source.moving.pack(ORDER)
