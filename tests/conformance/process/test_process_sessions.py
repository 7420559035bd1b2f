"""Sessions in living environments under bubblewrap: their shell, their cores, and their owner."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from domain.action import EnvironmentSpec, ExecSpec, ExpectSpec, Outcome
from domain.allocation import Allocation
from domain.decisions import ForkEnvironment
from domain.errors import Conflict, InvalidRequest, Unavailable
from domain.ids import ResourceId, TrajectoryKey
from domain.ports import RunOrder, RunReport, SessionResult
from domain.ports.sessions import SessionFacts, SessionKeeping, SessionSpec
from managers.cpu.process import ProcessDriver
from tests.conformance.driver import TRAJECTORY, an_order
from tests.conformance.isolations import a_driver, isolations
from tests.small_image import docker_tar, root_tar

pytestmark = pytest.mark.skipif("bwrap" not in isolations(), reason="bubblewrap does not work here")
CPUS = sorted(os.sched_getaffinity(0))
LAST = CPUS[-1]


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[ProcessDriver]:
    driver = a_driver(tmp_path, "bwrap")
    await driver.open()
    yield driver
    await driver.close()


async def opened(driver: ProcessDriver, **fields: Any) -> SessionFacts:
    spec = SessionSpec("main", **fields)
    return await driver.sessions.open(TRAJECTORY, spec, EnvironmentSpec())


def an_action(*command: str, name: str = "act_1", core: int = LAST, **fields: Any) -> RunOrder:
    timeout = fields.pop("timeout_seconds", 60.0)
    spec = ExecSpec(command, session="main", **fields)
    order = an_order(name=name, spec=spec, timeout_seconds=timeout)
    return RunOrder(order.action, (Allocation(ResourceId("cpu:n1"), 1000, (core,)),))


async def run(driver: ProcessDriver, *command: str, **fields: Any) -> RunReport:
    return await driver.run(an_action(*command, **fields), lambda: None)


async def result(driver: ProcessDriver, *command: str, **fields: Any) -> SessionResult:
    report = await run(driver, *command, **fields)
    assert report.outcome is Outcome.COMPLETED, report
    assert isinstance(report.result, SessionResult), report.result
    return report.result


@pytest.mark.parametrize(("shell", "pty"), [("bash", True), ("bash", False), ("sh", True)])
async def test_a_session_lasts_between_actions(
    driver: ProcessDriver, shell: str, pty: bool
) -> None:
    assert isinstance(driver, SessionKeeping)
    facts = await opened(driver, shell=(shell,), pty=pty)
    await result(driver, "mkdir -p a/b; cd a/b; export KEPT=5; echo file >made")
    second = await result(driver, "pwd; echo $KEPT; cat made; (exit 4)")
    outside = await driver.run(an_order("cat", "a/b/made"), lambda: None)
    assert facts.state == "idle"
    assert second.stdout.split() == ["/workspace/a/b", "5", "file"]
    assert second.exit_code == 4
    assert outside.result is not None
    assert outside.result.stdout == "file\n"


async def test_a_session_is_confined_as_a_command_is(driver: ProcessDriver) -> None:
    await opened(driver)
    found = await result(
        driver,
        "grep -E 'CapEff|NoNewPrivs|Seccomp:' /proc/self/status; touch /usr/x /.tangram/x; unshare -U true",
    )
    assert "CapEff:\t0000000000000000" in found.stdout
    assert "NoNewPrivs:\t1" in found.stdout
    assert (
        found.stdout.count("Read-only file system") + found.stdout.count("Permission denied") >= 2
    )
    assert found.exit_code != 0


async def test_a_session_of_an_environment_with_egress_is_not_in_the_network_of_the_host(
    driver: ProcessDriver,
) -> None:
    environment = EnvironmentSpec(network="egress")
    await driver.sessions.open(TRAJECTORY, SessionSpec("main"), environment)
    assert driver.environments is not None
    inside = driver.environments.of(TRAJECTORY).pid
    assert os.readlink(f"/proc/{inside}/ns/net") != os.readlink("/proc/self/ns/net")
    refused = await run(driver, "true")
    assert (refused.outcome, refused.result) == (Outcome.INFRA_FAILED, None)
    assert "egress.hosts" in str(refused.detail)


async def test_the_granted_cores_are_those_of_the_command_alone(driver: ProcessDriver) -> None:
    await opened(driver)
    first = await result(driver, "nproc; grep Cpus_allowed_list /proc/self/status; sleep 600 &")
    assert f"Cpus_allowed_list:\t{LAST}\r\n" in first.stdout
    assert driver.environments is not None
    assert driver.environments.of(TRAJECTORY).limits.cores is None or not (
        driver.environments.of(TRAJECTORY).limits.cores.acting()  # type: ignore[union-attr]
    )
    second = await result(driver, "grep Cpus_allowed_list /proc/self/status", core=CPUS[0])
    assert f"Cpus_allowed_list:\t{CPUS[0]}\r\n" in second.stdout


async def test_a_program_that_an_expectation_leaves_loses_its_cores(driver: ProcessDriver) -> None:
    await opened(driver)
    waiting = await result(driver, "read -p 'Go? ' x; echo went $x", expect=ExpectSpec(r"Go\? $"))
    assert (waiting.exit_code, waiting.session) == (None, "busy")
    environment = driver.environments.of(TRAJECTORY)  # type: ignore[union-attr]
    if environment.limits.cores is not None:
        assert environment.limits.cores.acting() == []
    assert "went on" in (await result(driver, stdin="on\n")).stdout


async def test_the_list_of_processes_names_the_session(driver: ProcessDriver) -> None:
    await opened(driver)
    await result(driver, "sleep 600 &")
    environment = driver.environments.of(TRAJECTORY)  # type: ignore[union-attr]
    async with asyncio.timeout(20):  # until it has become the program
        while "sleep 600" not in {each.command for each in environment.processes()}:
            await asyncio.sleep(0.01)
    assert {each.owner for each in environment.processes()} == {"session:main"}


async def test_a_time_out_ends_the_program_and_no_session(driver: ProcessDriver) -> None:
    await opened(driver)
    report = await run(driver, "sleep 600", timeout_seconds=0.3)
    assert report.outcome is Outcome.TIMEOUT
    assert (await result(driver, "echo usable")).stdout.endswith("usable\r\n")


async def test_commands_beside_a_session_end_nothing_of_it(driver: ProcessDriver) -> None:
    await opened(driver)
    await result(driver, "sleep 600 & echo $! >pid")
    stopped = an_order("sleep", "600", name="act_2", timeout_seconds=0.2)
    assert (await driver.run(stopped, lambda: None)).outcome is Outcome.TIMEOUT
    assert (await result(driver, "kill -0 $(cat pid); echo $?")).stdout == "0\r\n"


async def test_forks_find_the_idle_shells_and_these_enter_their_directory_again(
    driver: ProcessDriver,
) -> None:
    await opened(driver)
    await result(driver, "mkdir deep; cd deep")
    environment = driver.environments.of(TRAJECTORY)  # type: ignore[union-attr]
    assert set(driver._sessions.idle_shells(environment)) == {
        each.pid for each in environment.processes()
    }
    await driver._sessions.refresh_directories(environment)
    assert (await result(driver, "pwd")).stdout == "/workspace/deep\r\n"


async def test_an_environment_that_ends_ends_its_sessions(driver: ProcessDriver) -> None:
    await opened(driver)
    await result(driver, "sleep 600 &")
    environment = driver.environments.of(TRAJECTORY)  # type: ignore[union-attr]
    pids = environment.pids()
    await driver.remove_environment(TRAJECTORY)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    with pytest.raises(InvalidRequest, match="no environment"):
        driver.sessions.get(TRAJECTORY, "main")
    refused = await run(driver, "true")
    assert refused.result is not None
    assert refused.result.exit_code == 127


async def test_sessions_survive_their_worker(tmp_path: Path) -> None:
    first = a_driver(tmp_path, "bwrap", environment_keep="true")
    await first.open()
    await opened(first)
    await result(first, "cd /tmp; export KEPT=1; sleep 600 & echo $! >pid")
    await first.close()
    second = a_driver(tmp_path, "bwrap")
    await second.open()
    try:
        assert second.sessions.get(TRAJECTORY, "main").state == "idle"
        kept = await result(second, "echo $KEPT $PWD; kill -0 $(cat pid); echo $?", name="act_2")
        assert kept.stdout == "1 /tmp\r\n0\r\n"
    finally:
        await second.close()


async def test_a_killed_shell_ends_its_session_with_the_signal(driver: ProcessDriver) -> None:
    await opened(driver)
    await result(driver, "true")
    environment = driver.environments.of(TRAJECTORY)  # type: ignore[union-attr]
    shell = next(each for each in environment.processes() if each.command.startswith("bash"))
    os.kill(shell.pid, signal.SIGKILL)
    async with asyncio.timeout(20):
        while driver.sessions.all(TRAJECTORY)[0].state != "ended":
            await asyncio.sleep(0.01)
    assert driver.sessions.all(TRAJECTORY)[0].exit_status == 137


async def test_a_node_without_environments_says_why_it_has_no_sessions(tmp_path: Path) -> None:
    driver = a_driver(tmp_path, "process")
    await driver.open()
    try:
        with pytest.raises(Unavailable, match="without bubblewrap"):
            await opened(driver)
        report = await run(driver, "true")
        assert report.outcome is Outcome.INFRA_FAILED
        assert "without bubblewrap" in (report.detail or "")
    finally:
        await driver.close()


async def test_an_unknown_trajectory_has_no_sessions(driver: ProcessDriver) -> None:
    with pytest.raises(InvalidRequest, match="no environment") as caught:
        driver.sessions.all(TrajectoryKey("lab/other"))
    assert caught.value.code == "not_here"


async def test_a_session_goes_on_after_a_fork_of_its_environment(driver: ProcessDriver) -> None:
    child = TrajectoryKey("lab/trj-2")
    await opened(driver)
    await result(driver, "mkdir -p deep/er; cd deep/er; export KEPT=1; echo before >file")
    await driver.fork_environment(ForkEnvironment(TRAJECTORY, "n1", (child,), "r1", "web"))
    after = await result(driver, "echo $KEPT; pwd; cat file; echo after >file; cat file")
    inside = an_order("cat", "deep/er/file", name="act_9", trajectory="trj-2")
    forked = await driver.run(inside, lambda: None)
    assert after.stdout.split() == ["1", "/workspace/deep/er", "before", "after"]
    assert forked.result is not None
    assert forked.result.stdout == "before\n"


async def test_an_idle_session_in_an_image_survives_a_sealed_fork_and_a_busy_one_refuses_it(
    driver: ProcessDriver,
) -> None:
    archive = driver.trees.images.receive()
    archive.write_bytes(docker_tar(root_tar()))
    driver.trees.images.import_archive("small", archive)
    environment, child = EnvironmentSpec("small"), TrajectoryKey("lab/trj-2")
    order = ForkEnvironment(
        TRAJECTORY, "n1", (child,), "r1", "web", "refuse", environment=environment
    )
    spec = SessionSpec("main", ("sh",), cwd="/srv")
    await driver.sessions.open(TRAJECTORY, spec, environment)
    await result(driver, "mkdir deep; cd deep; export KEPT=1; echo before >file")
    await result(driver, "read x", expect=ExpectSpec(input=True))
    with pytest.raises(Conflict):
        await driver.fork_environment(order)
    await result(driver, stdin="\n")
    report = await driver.fork_environment(order)
    after = await result(driver, "echo $KEPT; pwd; cat file; echo after >file; cat file")
    assert report.way == "sealed", report
    assert after.stdout.split() == ["1", "/srv/deep", "before", "after"]


async def test_a_command_that_loses_a_program_to_the_limit_of_memory_ends_oom_killed(
    driver: ProcessDriver,
) -> None:
    if driver.memory_protection != "limited by control groups":
        pytest.skip(driver.memory_protection)
    spec = EnvironmentSpec(memory_bytes=96 * 2**20)
    await driver.sessions.open(TRAJECTORY, SessionSpec("main"), spec)
    await result(driver, "true")
    report = await run(driver, "python3 -c 'print(len(bytearray(400 << 20)))'", name="act_2")
    assert report.outcome is Outcome.OOM_KILLED, report
    assert "declare a higher environment.memory_bytes" in (report.detail or "")
    assert isinstance(report.result, SessionResult)
    assert report.result.exit_code == 137
    assert (await result(driver, "echo on", name="act_3")).stdout.strip() == "on"
