"""An init begins as the copy of a shell that another one runs as, and goes on where that copy does not run."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from domain.ids import TrajectoryKey
from managers.cpu.environment.hidden_shell import NAME, may_hide
from managers.cpu.environment.kept import KeptEnvironment
from managers.cpu.process import ProcessDriver
from tests.conformance.driver import an_order
from tests.conformance.isolations import a_driver, isolations

pytestmark = [
    pytest.mark.skipif("bwrap" not in isolations(), reason="no sandbox works here"),
    pytest.mark.skipif(not may_hide(), reason="this worker hides no init"),
]
#: Tries to trace the init, and to read what it runs.
ATTACK = """
import ctypes, os
init = os.getppid()
print(ctypes.CDLL(None).ptrace(16, init, 0, 0))
for name in ("exe", "mem", "environ"):
    try:
        open(f"/proc/{init}/{name}", "rb").read(1)
        print("read", name)
    except OSError as error:
        print(error.strerror)
"""


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[ProcessDriver]:
    driver = a_driver(tmp_path, "bwrap")
    await driver.open()
    yield driver
    await driver.close()


async def environment(driver: ProcessDriver, name: str, *command: str) -> KeptEnvironment:
    order = an_order(*command, name=f"act_{name}", trajectory=name)
    report = await driver.run(order, lambda: None)
    assert report.result is not None, report
    assert report.result.exit_code == 0, report
    assert driver.environments is not None
    return driver.environments.of(TrajectoryKey(f"lab/{name}"))


def copy_of(environment: KeptEnvironment) -> os.stat_result:
    return (environment.control / NAME).stat()


async def test_the_second_init_shares_the_copy_and_is_hidden_from_its_start(driver: ProcessDriver):
    first = await environment(driver, "t1", "true")
    second = await environment(driver, "t2", "true")
    assert copy_of(first).st_ino == copy_of(second).st_ino
    assert os.stat(f"/proc/{second.pid}/exe").st_ino == copy_of(second).st_ino
    assert copy_of(second).st_mode & 0o777 == 0o111
    order = an_order("/usr/bin/python3", "-c", ATTACK, name="act_attack", trajectory="t2")
    report = await driver.run(order, lambda: None)
    assert report.result is not None, report
    assert report.result.stdout.splitlines() == ["-1", *3 * ["Permission denied"]]


async def test_a_copy_that_does_not_run_is_not_used(driver: ProcessDriver, tmp_path: Path):
    await environment(driver, "t1", "true")
    [kept] = (tmp_path / "state" / "shells").iterdir()
    kept.unlink()
    kept.write_text("#!/nonexistent\n")
    kept.chmod(0o111)
    second = await environment(driver, "t2", "true")
    assert os.stat(f"/proc/{second.pid}/exe").st_ino != kept.stat().st_ino
    assert [each.name for each in driver.environments.all()]  # type: ignore[union-attr]


async def test_inits_are_on_the_shared_cores_and_in_their_groups_from_their_start(
    driver: ProcessDriver,
):
    living = await environment(driver, "t1", "true")
    if living.limits.cores is not None:
        assert set(living.own_pids()) <= set(living.limits.cores.resting())
    if living.limits.processes is not None:
        assert set(living.own_pids()) <= set(living.limits.processes.background.processes())
