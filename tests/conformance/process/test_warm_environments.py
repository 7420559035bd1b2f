"""Prepared environments: they run in advance, are used once, refilled, counted, and never of another image."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from domain.action import EnvironmentSpec, ExecSpec
from domain.errors import InvalidRequest
from domain.ids import TrajectoryKey
from domain.rewards import RewardRule
from managers.common.reward_evidence import read_reward
from managers.cpu.environment.kept import KeptEnvironment
from managers.cpu.environment.prepared import PreparedEnvironments
from managers.cpu.memory_groups import MemoryGroups
from managers.cpu.process import ProcessDriver
from managers.cpu.process.settings import ProcessSettings
from tests.conformance.driver import TRAJECTORY, an_order
from tests.conformance.forking import CHILD, a_fork
from tests.conformance.isolations import a_driver, isolations
from tests.conformance.process.worker_of import STRANGER
from tests.small_image import docker_tar, root_tar

pytestmark = pytest.mark.skipif("bwrap" not in isolations(), reason="no sandbox works here")
FIRST = TrajectoryKey("lab/t1")
MIB = 2**20
PLAIN = EnvironmentSpec()
SMALL = EnvironmentSpec("small")


def import_small(driver: ProcessDriver, content: bytes) -> None:
    archive = driver.trees.images.receive()
    archive.write_bytes(content)
    driver.trees.images.import_archive("small", archive)


async def kept(driver: ProcessDriver, number: int, image: str = "small") -> None:
    """Wait until so many are kept."""
    async with asyncio.timeout(60):
        while driver.images.warm(image).kept != number:
            await asyncio.sleep(0.01)


def prepared_of(driver: ProcessDriver) -> PreparedEnvironments:
    assert isinstance(driver.images.prepared, PreparedEnvironments)
    return driver.images.prepared


def waiting(driver: ProcessDriver, image: str = "") -> list[KeptEnvironment]:
    return [each.environment for each in prepared_of(driver)._waiting[image]]


def used(driver: ProcessDriver, trajectory: TrajectoryKey = FIRST) -> KeptEnvironment:
    assert driver.environments is not None
    return driver.environments.of(trajectory)


def groups_named(environment: KeptEnvironment, name: str) -> list[Path]:
    """Return where groups of an environment with another name are, beside its own."""
    limits, found = environment.limits, []
    if limits.memory is not None:
        found.append(limits.memory.entrance.parents[1] / name)
    if limits.processes is not None:
        found.append(limits.processes.directory.with_name(f"environment-{name}"))
    if limits.cores is not None:
        found.append(limits.cores.entrance.parents[2] / name)
    own = [each.with_name(each.name.replace(name, environment.name)) for each in found]
    assert all(each.exists() for each in own)
    return found


@asynccontextmanager
async def a_life(directory: Path, number: int = 1, **settings: str) -> AsyncIterator[ProcessDriver]:
    """A driver that keeps environments without an image prepared."""
    driver = a_driver(directory, "bwrap", **settings)
    await driver.open()
    driver.images.keep_warm({"": number})
    await kept(driver, number, "")
    try:
        yield driver
    finally:
        await driver.close()


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[ProcessDriver]:
    driver = a_driver(tmp_path, "bwrap", environment_warm="small=2")
    await asyncio.to_thread(driver.trees.images.open)
    await asyncio.to_thread(import_small, driver, docker_tar(root_tar()))
    await driver.open()
    await kept(driver, 2)
    yield driver
    await driver.close()


async def said(
    driver: ProcessDriver,
    script: str,
    trajectory: str = "t1",
    spec: EnvironmentSpec = PLAIN,
    reward: RewardRule | None = None,
) -> str:
    order = an_order(
        name=f"act_{trajectory}_{os.urandom(4).hex()}", trajectory=trajectory,
        spec=ExecSpec(("sh", "-c", script)),
    )  # fmt: skip
    action = replace(order.action, environment=spec, reward=reward)
    report = await driver.run(replace(order, action=action), lambda: None)
    assert report.result is not None, report.detail
    return report.result.stdout + report.result.stderr


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_a_prepared_environment_is_used_once_and_replaced(driver: ProcessDriver):
    script = "cat /etc/of-the-image; ls /made; echo >/made"
    for number in range(4):
        assert (await said(driver, script, f"t{number}", SMALL)).startswith("image\n")
    await kept(driver, 2)
    facts = driver.images.warm("small")
    assert facts.taken >= 2
    assert facts.made == facts.taken + 2
    assert facts.memory_bytes > 0
    [listed] = await driver.images.all()
    assert (listed.warm.wanted, listed.environments) == (2, 4)


async def test_the_init_that_waited_is_that_of_the_trajectory(tmp_path: Path):
    async with a_life(tmp_path) as driver:
        [prepared] = waiting(driver)
        pid = prepared.pid
        assert await said(driver, "echo $PWD; echo x >/workspace/file; cat file") == (
            "/workspace\nx\n"
        )
        environment = used(driver)
        assert (environment, environment.pid, environment.trajectory) == (prepared, pid, FIRST)
        await kept(driver, 1, "")
        assert pid not in [each.pid for each in waiting(driver)]


async def test_it_has_the_limits_and_the_groups_of_its_trajectory(tmp_path: Path):
    async with a_life(tmp_path) as driver:
        [prepared] = waiting(driver)
        former = prepared.name
        spec = EnvironmentSpec(memory_bytes=64 * MIB)
        # The kernel ends the program that holds it all.
        script = "head -c 200M /dev/zero | tail -c 150M | wc -c"
        assert (await said(driver, script, spec=spec)).split()[0] == "0"
        environment = used(driver)
        limits = environment.limits
        if limits.memory is not None and limits.processes is not None:
            assert limits.memory.limit_bytes == 64 * MIB
            assert environment.pid in limits.processes.background.processes()
        assert not any(each.exists() for each in groups_named(environment, former))


async def test_processes_are_moved_where_the_kernel_renames_no_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(groups: MemoryGroups, former: str, name: str) -> None:
        raise PermissionError(1, "as in version 2")

    monkeypatch.setattr(MemoryGroups, "rename", refuse)
    async with a_life(tmp_path) as driver:
        [prepared] = waiting(driver)
        former, pid = prepared.name, prepared.pid
        assert await said(driver, "echo ran") == "ran\n"
        environment = used(driver)
        assert environment.pid == pid
        if environment.limits.processes is not None:
            assert pid in environment.limits.processes.background.processes()
        assert not any(each.exists() for each in groups_named(environment, former))


async def test_a_long_command_and_a_session_of_files_work_after_the_rename(tmp_path: Path):
    async with a_life(tmp_path) as driver:
        assert (await said(driver, f"printf %s {'x' * 9000} | wc -c")).strip() == "9000"
        await driver.put_file(FIRST, "sent", b"sent")
        assert await said(driver, "cat sent; echo got >/tmp/got") == "sent"
        assert await driver.get_file(FIRST, "/tmp/got", 100) == b"got\n"


async def test_what_does_not_fit_takes_none(tmp_path: Path):
    async with a_life(tmp_path) as driver:
        [prepared] = waiting(driver)
        pid = prepared.pid
        host = EnvironmentSpec(network="host")
        assert await said(driver, "echo ran", "t2", host) == "ran\n"
        assert used(driver, TrajectoryKey("lab/t2")).pid != pid
        assert not is_there(pid)


async def test_a_reward_before_any_command_uses_no_second_mount(tmp_path: Path):
    async with a_life(tmp_path) as driver:
        [prepared] = waiting(driver)
        pid = prepared.pid
        rule = RewardRule("exit_code")
        assert await said(driver, "echo written >/workspace/file", reward=rule) == ""
        assert not is_there(pid)
        assert await said(driver, "cat /workspace/file") == "written\n"


async def test_one_of_a_former_image_is_not_used(driver: ProcessDriver):
    changed = docker_tar(root_tar(("etc/of-the-image", b"0", 0o644, 0, b"later\n")))
    former = [each.pid for each in waiting(driver, "small")]
    await asyncio.to_thread(import_small, driver, changed)
    assert await said(driver, "cat /etc/of-the-image", "t1", SMALL) == "later\n"
    assert used(driver).pid not in former


async def test_those_of_a_predecessor_end_with_it_and_are_deleted(
    driver: ProcessDriver, tmp_path: Path
):
    before = {each.name for each in (tmp_path / "state" / "alone").iterdir()}
    pids = [each.first_pid for each in waiting(driver, "small")]
    await driver.close()
    assert not any(map(is_there, pids))
    later = a_driver(tmp_path, "bwrap")
    await later.open()
    assert len(before) == 2
    assert list((tmp_path / "state" / "alone").iterdir()) == []
    await later.close()


#: A worker that has one environment in use and one prepared, says which inits these are, and waits.
_CRASHING = """
import asyncio, sys
from pathlib import Path
from tests.conformance.process.test_warm_environments import a_life, kept, said, used, waiting

async def main(directory):
    async with a_life(Path(directory)) as driver:
        await said(driver, "echo kept >/tmp/file; sleep 900 &")
        await kept(driver, 1, "")
        print(used(driver).pid, waiting(driver)[0].pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(main(sys.argv[1]))
"""


async def test_after_a_crash_a_used_one_is_adopted_and_a_waiting_one_is_ended(tmp_path: Path):
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _CRASHING, str(tmp_path), stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert worker.stdout is not None
    taken, waited = map(int, (await worker.stdout.readline()).split())
    worker.send_signal(signal.SIGKILL)
    await worker.communicate()
    driver = a_driver(tmp_path, "bwrap")
    await driver.open()
    assert used(driver).pid == taken
    assert not is_there(waited)
    assert await said(driver, "cat /tmp/file") == "kept\n"
    await driver.close()
    assert not is_there(taken)


async def test_one_that_ends_while_it_waits_is_replaced(tmp_path: Path):
    async with a_life(tmp_path) as driver:
        [prepared] = waiting(driver)
        pid = prepared.pid
        os.kill(prepared.first_pid, signal.SIGKILL)
        async with asyncio.timeout(60):
            while [each.pid for each in waiting(driver) if not each.ended] in ([], [pid]):
                await asyncio.sleep(0.01)
        assert await said(driver, "echo ran") == "ran\n"


async def test_as_many_as_the_pool_asks_for_now(tmp_path: Path):
    async with a_life(tmp_path, 3) as driver:
        pids = [each.first_pid for each in waiting(driver)]
        driver.images.keep_warm({"": 1})
        await kept(driver, 1, "")
        async with asyncio.timeout(60):
            while sum(map(is_there, pids)) != 1:
                await asyncio.sleep(0.01)
        driver.images.keep_warm({})
        await kept(driver, 0, "")
        facts = driver.images.warm_facts()[""]
        assert (facts.wanted, facts.kept, facts.taken, facts.made) == (0, 0, 0, 3)


async def test_the_setting_of_the_node_has_precedence(driver: ProcessDriver):
    driver.images.keep_warm({"small": 7, "": 1})
    await kept(driver, 1, "")
    assert driver.images.warm_facts()["small"].wanted == 2


async def test_a_missing_image_is_named_as_the_problem_until_it_is_there(tmp_path: Path):
    driver = a_driver(tmp_path, "bwrap", environment_warm="small=1")
    await driver.open()
    prepared = prepared_of(driver)
    prepared._pause_seconds = 0.05
    async with asyncio.timeout(60):
        while "small" not in driver.images.warm("small").problem:
            await asyncio.sleep(0.01)
    await asyncio.to_thread(import_small, driver, docker_tar(root_tar()))
    prepared._wake()
    await kept(driver, 1)
    assert driver.images.warm("small").problem == ""
    await driver.close()


async def used_as_any_other(directory: Path) -> list[str]:
    """Have a prepared environment rewarded, forked and adopted; return what its commands print."""
    found = []
    async with a_life(directory, environment_keep="true") as driver:
        pid = waiting(driver)[0].pid
        await said(driver, "echo first >/tmp/first", "trj-1")
        assert used(driver, TRAJECTORY).pid == pid
        rule = RewardRule("json", "reward", "result.json")
        order = an_order(
            name="act_reward",
            spec=ExecSpec(("sh", "-c", "cat /tmp/first; echo '{\"reward\": 0.25}' >result.json")),
        )
        order = replace(order, action=replace(order.action, reward=rule))
        report = await driver.run(order, lambda: None)
        assert report.result is not None, report
        found += [report.result.stdout.strip(), str(read_reward(rule, report).value)]
        report_of_fork = await driver.fork_environment(a_fork(TRAJECTORY, CHILD))
        found.append(report_of_fork.way)
        found.append((await said(driver, "cat /tmp/first", CHILD.split("/")[1])).strip())
    async with a_life(directory) as driver:
        assert used(driver, TRAJECTORY).pid == pid
        found.append((await said(driver, "cat /tmp/first result.json", "trj-1")).strip())
    return found


_EXPECTED = ["first", "0.25", "sealed", "first", 'first\n{"reward": 0.25}']
#: It imports first what is imported on demand: another user may be unable to read this Python.
_WORKER = """
import asyncio, concurrent.futures.thread, ctypes, json, os, sys
import ctypes.util, encodings.idna, importlib.util
try:
    import pynvml
except ImportError:
    pass
from pathlib import Path
from managers.cpu.tree import switch
from tests.conformance.process.test_warm_environments import used_as_any_other

uid, directory = sys.argv[1:]
os.setgroups([])
os.setresgid(int(uid), int(uid), int(uid))
os.setresuid(int(uid), int(uid), int(uid))
ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE: as after an exec, its own user may look at it
switch.__file__, sys.executable = f"{directory}/switch.py", "/usr/bin/python3"
print(json.dumps(asyncio.run(used_as_any_other(Path(directory)))))
"""


async def test_one_is_rewarded_forked_and_adopted_as_any_other(tmp_path: Path):
    assert await used_as_any_other(tmp_path) == _EXPECTED


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts workers of other users")
async def test_a_worker_without_root_has_the_same():
    with tempfile.TemporaryDirectory(prefix="tangram-warm-") as directory:
        place = Path(directory)
        program = Path(__file__).parents[3] / "managers" / "cpu" / "tree" / "switch.py"
        (place / "switch.py").write_bytes(program.read_bytes())
        for path in (place, place / "switch.py"):
            os.chown(path, STRANGER, STRANGER)
        worker = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", _WORKER, str(STRANGER), directory],
            capture_output=True, cwd=Path(__file__).parents[3], timeout=300, check=False,
        )  # fmt: skip
        assert worker.returncode == 0, worker.stderr.decode()
        assert json.loads(worker.stdout) == _EXPECTED


@pytest.mark.parametrize("text", ["swe:1", "=3", "a=b", "a=1,b"])
def test_a_setting_that_names_no_number_is_refused(text: str):
    with pytest.raises(InvalidRequest, match="write it like swe:1=8"):
        ProcessSettings.parse({"environment_warm": text})
