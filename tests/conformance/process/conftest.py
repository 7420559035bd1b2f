"""Real processes on this machine, in every isolation that works here."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from domain.action import ExecSpec
from domain.ports import ExecResult, RunReport
from managers.cpu.process import ProcessDriver
from tests.conformance.driver import an_order
from tests.conformance.isolations import a_driver, isolations

Shell = Callable[..., Awaitable[RunReport]]


@pytest.fixture(params=isolations())
def isolation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def driver(tmp_path: Path, isolation: str) -> AsyncIterator[ProcessDriver]:
    driver = a_driver(tmp_path, isolation)
    await driver.open()
    assert driver.isolation == isolation
    yield driver
    await driver.close()


@pytest.fixture
def foreign() -> Iterator[subprocess.Popen[bytes]]:
    """A process of somebody else that carries an action's names in arguments and environment."""
    process = subprocess.Popen(
        ["sh", "-c", "read line", "act_1#1", "TANGRAM_ACTION_ID=act_1", "sleep"],
        env={**os.environ, "TANGRAM_ACTION_ID": "act_1"},
        stdin=subprocess.PIPE,
    )
    yield process
    process.communicate()


@pytest.fixture
def shell(driver: ProcessDriver) -> Shell:
    """Run a shell script to its end."""

    async def run(
        script: str,
        *,
        timeout_seconds: float | None = 30.0,
        stdin: str | None = None,
        limit: int = 65536,
        env: dict[str, str] | None = None,
    ) -> RunReport:
        spec = ExecSpec(("sh", "-c", script), stdin=stdin, output_limit_bytes=limit, env=env or {})
        return await driver.run(an_order(spec=spec, timeout_seconds=timeout_seconds), lambda: None)

    return run


@pytest.fixture
def output(shell: Shell) -> Callable[..., Awaitable[ExecResult]]:
    """Run a shell script to its end and return what it left."""

    async def run(script: str, **options: object) -> ExecResult:
        report = await shell(script, **options)
        assert report.result is not None
        return report.result

    return run
