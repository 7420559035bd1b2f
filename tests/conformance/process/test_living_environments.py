"""Living environments: what an action leaves goes on, confined, until the environment ends; and nothing longer."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from domain.action import ExecSpec, Outcome
from domain.allocation import Allocation
from domain.ids import ActionId, ResourceId
from domain.ports import ExecResult, RunOrder, RunReport
from managers.common.affinity import usable_cores
from managers.cpu.environment.init import InitClient
from managers.cpu.environment.kept import KeptEnvironment
from managers.cpu.environment.protocol import (
    EnvironmentLost,
    Environments,
    LivingEnvironment,
    NoEnvironment,
)
from managers.cpu.process import ProcessDriver
from tests.conformance.driver import TRAJECTORY, Performance, an_order
from tests.conformance.isolations import a_driver, isolations
from tests.conformance.process.test_process_ending import (
    ESCAPES,
    processes_with,
    stopped_asleep,
    until_asleep,
)

pytestmark = pytest.mark.skipif("bwrap" not in isolations(), reason="no bubblewrap here")


@pytest.fixture(params=["control groups", "no control groups"])
async def driver(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ProcessDriver]:
    if request.param == "no control groups":
        for name in (
            "process.driver.open_process_groups", "process.driver.open_memory_groups",
            "environment.driver_environments.open_core_sets",
        ):  # fmt: skip
            monkeypatch.setattr(f"managers.cpu.{name}", _refuse)
    driver = a_driver(tmp_path, "bwrap")
    await driver.open()
    yield driver
    await driver.close()


def _refuse(*_: object) -> None:
    raise PermissionError("Permission denied")


@pytest.fixture
def sleep() -> str:
    """A sleep with a duration of its own."""
    return f"sleep 700.{uuid.uuid4().int % 10**12:012d}"


async def run(driver: ProcessDriver, script: str, name: str = "act_1", **more: object) -> RunReport:
    return await driver.run(an_order("sh", "-c", script, name=name, **more), lambda: None)  # type: ignore[arg-type]


async def said(driver: ProcessDriver, script: str, name: str = "act_1") -> ExecResult:
    report = await run(driver, script, name)
    assert report.result is not None, report
    return report.result


def the_environment(driver: ProcessDriver) -> KeptEnvironment:
    assert driver.environments is not None
    return driver.environments.of(TRAJECTORY)


async def test_a_driver_offers_the_protocols(driver: ProcessDriver) -> None:
    assert isinstance(driver.environments, Environments)
    with pytest.raises(NoEnvironment):
        driver.environments.of(TRAJECTORY)
    await run(driver, "true")
    assert isinstance(the_environment(driver), LivingEnvironment)


@pytest.mark.parametrize("escape", ESCAPES.values(), ids=ESCAPES.keys())
async def test_what_an_action_leaves_goes_on_in_the_background_and_ends_with_the_environment(
    driver: ProcessDriver, sleep: str, escape: str
) -> None:
    report = await run(driver, f"{escape.format(sleep=sleep)}\nexit 7")
    assert (report.outcome, report.result and report.result.exit_code) == (Outcome.COMPLETED, 7)
    assert "in the background" in (report.detail or "")
    await until_asleep(sleep)
    listed = the_environment(driver).processes()
    assert {(each.owner, each.background) for each in listed} == {("act_1", True)}
    assert (await said(driver, "echo next", "act_2")).stdout == "next\n"
    await until_asleep(sleep)
    await driver.remove_environment(TRAJECTORY)
    assert processes_with(sleep.split()[1]) == []


async def test_background_processes_run_on_the_shared_cores_alone(
    driver: ProcessDriver, sleep: str
) -> None:
    cores = usable_cores()
    allocation = Allocation(ResourceId("cpu:n1"), 1000, (cores[-1],))
    script = f"{sleep} & grep Cpus_allowed_list /proc/self/status; taskset -p -c {cores[-1]} $$ >&2"
    order = RunOrder(an_order("sh", "-c", script).action, (allocation,))
    report = await driver.run(order, lambda: None)
    assert report.result is not None
    assert report.result.stdout.split()[1] == str(cores[-1])
    await until_asleep(sleep)
    [process] = the_environment(driver).processes()
    assert os.sched_getaffinity(process.pid) == the_environment(driver).confinement.background
    # What is in the background cannot choose granted cores, in whatever way.
    await said(driver, f"taskset -a -p -c {cores[-1]} {process.inner_pid}", "act_2")
    assert os.sched_getaffinity(process.pid) == the_environment(driver).confinement.background


async def test_tmp_home_and_the_rest_of_the_machine_last_between_actions(
    driver: ProcessDriver,
) -> None:
    await said(driver, "echo 1 >/tmp/a; echo 2 >~/b; echo 3 >/dev/shm/c")
    assert (await said(driver, "cat /tmp/a ~/b /dev/shm/c", "act_2")).stdout == "1\n2\n3\n"


@pytest.mark.parametrize("cwd", ["/tmp", "/usr/bin", "/workspace/sub", "sub"])
async def test_a_command_starts_in_any_directory_of_its_tree(
    driver: ProcessDriver, cwd: str
) -> None:
    await said(driver, "mkdir sub")
    order = an_order(spec=ExecSpec(("pwd",), cwd=cwd), name="act_2")
    report = await driver.run(order, lambda: None)
    assert report.result is not None
    assert report.result.stdout.strip() == os.path.join("/workspace", cwd)


async def test_a_time_out_ends_the_action_and_neither_the_environment_nor_earlier_processes(
    driver: ProcessDriver, sleep: str
) -> None:
    await run(driver, f"{sleep} & echo $! >pid", "act_0")
    await until_asleep(sleep)
    other = f"sleep 701.{os.getpid()}"
    report = await stopped_asleep(driver, f"setsid {other} & {other}", other, 2)
    assert report.outcome is Outcome.TIMEOUT
    assert processes_with(other.split()[1]) == []
    assert (await said(driver, "kill -0 $(cat pid) && echo alive", "act_2")).stdout == "alive\n"


async def test_a_server_may_log_after_its_action_has_ended(driver: ProcessDriver) -> None:
    """Nothing reads its output any more: it gets neither SIGPIPE nor an error, and is not stopped for ever."""
    script = "(while :; do echo line || exit; head -c 100000 /dev/zero; touch alive; done) &"
    await run(driver, script)
    async with asyncio.timeout(60):
        for number in range(3):
            await run(
                driver, "rm -f alive; until [ -e alive ]; do sleep 0.01; done", f"act_{number}"
            )


async def test_an_init_that_is_killed_is_replaced_and_its_processes_are_ended(
    driver: ProcessDriver, sleep: str
) -> None:
    report = await run(driver, f"setsid {sleep} & kill -9 $PPID; {sleep}")
    assert report.result is not None
    assert report.result.exit_code == 137
    assert (await said(driver, "echo again", "act_2")).stdout == "again\n"
    assert processes_with(sleep.split()[1]) == []


async def test_an_init_that_answers_no_more_is_replaced(driver: ProcessDriver, sleep: str) -> None:
    await run(driver, f"setsid {sleep} &")
    await until_asleep(sleep)
    environment = the_environment(driver)
    os.kill(environment.pid, signal.SIGSTOP)
    with pytest.raises(EnvironmentLost):
        await environment.client.ping(seconds=0.05)
    assert (await said(driver, "echo again", "act_2")).stdout == "again\n"
    assert processes_with(sleep.split()[1]) == []


@pytest.mark.parametrize("script", ["kill -9 0", "kill -9 -1", "kill -TERM -1; exit 3"])
async def test_commands_that_kill_all_they_can_harm_their_environment_alone(
    driver: ProcessDriver, script: str
) -> None:
    report = await run(driver, f"trap '' TERM; {script}")
    assert report.outcome is Outcome.COMPLETED
    assert (await said(driver, "echo again", "act_2")).stdout == "again\n"


async def test_an_exit_status_cannot_be_forged_through_the_pipe_of_the_init(
    driver: ProcessDriver,
) -> None:
    number = the_number(await_environment(driver, await run(driver, "true")))
    forge = " ".join(f"{number + n}\\ 0" for n in range(1, 30))
    script = f"for n in {forge}; do echo $n; done >/proc/$PPID/fd/1; exit 9"
    assert (await said(driver, script, "act_2")).exit_code == 9


def await_environment(driver: ProcessDriver, report: RunReport) -> KeptEnvironment:
    assert report.outcome is Outcome.COMPLETED
    return the_environment(driver)


def the_number(environment: KeptEnvironment) -> int:
    client: InitClient = environment.client
    return client.next_number()


async def test_removing_an_environment_leaves_no_process_group_or_folder(
    driver: ProcessDriver, sleep: str, tmp_path: Path
) -> None:
    await run(driver, f"{sleep} &")
    environment = the_environment(driver)
    first = environment.first_pid
    await driver.remove_environment(TRAJECTORY)
    assert not Path(f"/proc/{first}").exists()
    assert groups_with(environment.name) == []
    assert not environment.directory.exists()


def groups_with(name: str) -> list[str]:
    found = []
    for kind in ("cpuset", "pids", "memory"):
        for parent, directories, _ in os.walk(f"/sys/fs/cgroup/{kind}"):
            found += [f"{parent}/{each}" for each in directories if each.endswith(name)]
    return [each for each in found if f"tangram-{os.getpid()}" in each]


async def test_a_cancelled_action_that_is_being_started_leaves_nothing(
    driver: ProcessDriver, sleep: str
) -> None:
    await run(driver, "true")
    for number in range(10):
        performance = Performance(driver, an_order(*sleep.split(), name=f"act_c{number}"))
        for _ in range(number + 1):
            await asyncio.sleep(0)
        driver.stop(ActionId(f"act_c{number}"), Outcome.CANCELLED, "too late")
        assert (await performance.task).outcome is Outcome.CANCELLED
    assert processes_with(sleep.split()[1]) == []
    assert the_environment(driver).processes() == []


#: Stopped; or in a call of the kernel, waiting for a child that was stopped before its exec (vfork).
_STILL = frozenset("TD")


async def test_frozen_programs_stand_still_until_they_are_thawed(
    driver: ProcessDriver,
) -> None:
    await run(driver, "(while :; do echo >>ticks; sleep 0.01; done) &")
    environment = the_environment(driver)
    await environment.freeze()
    [loop, *_] = environment.processes()
    async with asyncio.timeout(30):
        while state_of(loop.pid) not in _STILL:
            await asyncio.sleep(0.005)
        await environment.thaw()
        while state_of(loop.pid) in _STILL:
            await asyncio.sleep(0.005)
    os.kill(loop.pid, signal.SIGKILL)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    ahead = [0.0]
    monkeypatch.setattr("managers.cpu.environment.store.seconds_since_boot", lambda: 1e9 + ahead[0])
    return ahead.append


async def test_background_processes_end_by_their_ttl(
    driver: ProcessDriver, sleep: str, clock: Callable[[float], None]
) -> None:
    await run(driver, f"{sleep} &")
    assert driver.environments is not None
    driver.environments.sweep()
    async with asyncio.timeout(30):
        while processes_with(sleep.split()[1]):
            await asyncio.sleep(0.005)
    assert (await said(driver, "echo stays", "act_2")).stdout == "stays\n"


@pytest.mark.parametrize("driver", ["control groups"], indirect=True)
async def test_a_change_of_cores_builds_no_scheduling_domains(driver: ProcessDriver) -> None:
    """They are of the whole machine, so each would delay whatever else runs on it."""
    await said(driver, "true")
    cores = the_environment(driver).limits.cores
    if cores is None:
        pytest.skip("there are no cpusets here")
    parent = cores._at.parent
    balanced_around = (parent.parent / "cpuset.sched_load_balance").read_text()
    expected = "0\n" if balanced_around == "1\n" else "1\n"
    for each in (parent, cores._at, cores._at / "acting", cores._at / "background"):
        assert (each / "cpuset.sched_load_balance").read_text() == expected
