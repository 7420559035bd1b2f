"""A trajectory that is opened again gets a new environment, also while the former one is still removed.

Both have one name and one folder. A large tree takes a while to delete; here it takes as long as the test needs.
Under a worker that is root and under one that is not.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from domain.action import ExecSpec
from domain.ports import RunReport
from managers.cpu import workspaces
from managers.cpu.process import ProcessDriver
from tests.conformance.driver import TRAJECTORY, an_order
from tests.conformance.isolations import a_driver, isolations
from tests.conformance.process.worker_of import STRANGER

#: It imports first what is imported on demand: another user may be unable to read this Python.
_WORKER = """
import asyncio, concurrent.futures.thread, ctypes, json, os, sys
import ctypes.util, encodings.idna, importlib.util
try:
    import pynvml
except ImportError:
    pass
from pathlib import Path
from tests.conformance.process.test_reopened_trajectories import a_life

uid, directory = sys.argv[1:]
os.setgroups([])
os.setresgid(int(uid), int(uid), int(uid))
os.setresuid(int(uid), int(uid), int(uid))
ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE: as after an exec, its own user may look at it
sys.executable = "/usr/bin/python3"
print(json.dumps(asyncio.run(a_life(Path(directory), "bwrap"))))
"""
_EXPECTED = [
    "completed: first", "completed: second", "completed: second", "completed: given in"
]  # fmt: skip


async def run(driver: ProcessDriver, script: str, name: str, trajectory: str) -> RunReport:
    order = an_order(name=name, spec=ExecSpec(("sh", "-c", script)), trajectory=trajectory)
    return await driver.run(order, lambda: None)


def seen(report: RunReport) -> str:
    if report.result is None:
        return f"{report.outcome}: {report.detail}"
    return f"{report.outcome}: {' '.join((report.result.stdout + report.result.stderr).split())}"


async def removed_slowly(
    driver: ProcessDriver, request: Callable[[], Coroutine[Any, Any, Any]], name: str
) -> Any:
    """Remove the environment, and begin a request before its folder is deleted; return the answer of the request."""
    held, released = threading.Event(), threading.Event()
    remove_tree = workspaces.remove_tree

    def slow(root: Path, yard: Path) -> None:
        held.set()
        assert released.wait(120)
        remove_tree(root, yard)

    workspaces.remove_tree = slow
    try:
        removal = asyncio.ensure_future(driver.remove_environment(TRAJECTORY))
        assert await asyncio.to_thread(held.wait, 120)
        answer = asyncio.ensure_future(request())
        # As much work as that of the request, and begun after it.
        assert seen(await run(driver, "echo there", name, "trj-2")) == "completed: there"
        released.set()
        await removal
        return await answer
    finally:
        workspaces.remove_tree = remove_tree
        released.set()


async def a_life(directory: Path, isolation: str) -> list[str]:
    """Use an environment again while it is removed: by an action, then by a file; return what was seen."""
    driver = a_driver(directory, isolation)
    await driver.open()
    try:
        first = await run(driver, "echo first | tee first", "act_1", "trj-1")
        second = await removed_slowly(
            driver, lambda: run(driver, "ls; echo second | tee second", "act_2", "trj-1"), "act_3"
        )
        kept = await run(driver, "cat second", "act_4", "trj-1")
        await removed_slowly(driver, lambda: driver.put_file(TRAJECTORY, "given", b"in\n"), "act_5")
        third = await run(driver, "ls; cat given", "act_6", "trj-1")
        return [seen(each) for each in (first, second, kept, third)]
    finally:
        await driver.close()


async def test_an_action_waits_for_the_removal_of_the_former_environment(
    tmp_path: Path, isolation: str
) -> None:
    assert await a_life(tmp_path, isolation) == _EXPECTED


@pytest.mark.skipif("bwrap" not in isolations(), reason="no sandbox works here")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts workers of other users")
async def test_an_action_waits_for_the_removal_under_a_worker_that_is_not_root() -> None:
    with tempfile.TemporaryDirectory(prefix="tangram-reopened-") as text:
        os.chown(text, STRANGER, STRANGER)
        worker = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", _WORKER, str(STRANGER), text],
            capture_output=True, cwd=Path(__file__).parents[3], timeout=300, check=False,
        )  # fmt: skip
        assert worker.returncode == 0, worker.stderr.decode()
        assert json.loads(worker.stdout) == _EXPECTED
