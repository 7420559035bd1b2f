"""Shells on the driver under test: the fixture ``driver`` of each folder."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from domain.action import ExecSpec
from domain.ports import Driver, ExecResult, RunReport
from tests.conformance.driver import an_order

Shell = Callable[..., Awaitable[RunReport]]


@pytest.fixture
def shell(driver: Driver) -> Shell:
    """Run a shell script to its end."""

    async def run(
        script: str,
        *,
        timeout_seconds: float | None = 180.0,
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
        assert report.result is not None, report
        return report.result

    return run
