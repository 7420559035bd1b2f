"""Sessions in containers: what lasts between actions, whose cores it has, and what ends it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from domain.action import EnvironmentSpec, ExecSpec, ExpectSpec, Outcome
from domain.allocation import Allocation
from domain.confinement import NETWORK_EGRESS
from domain.errors import Conflict, InvalidRequest, Unavailable
from domain.ids import ResourceId
from domain.ports import RunOrder, RunReport, SessionResult
from domain.ports.sessions import SessionFacts, SessionKeeping, SessionSpec
from domain.rewards import RewardRule
from managers.cpu.containers import ContainerDriver
from managers.cpu.containers.living import LivingContainer
from tests.conformance.containers.conftest import a_driver, crash, processes_with
from tests.conformance.driver import TRAJECTORY, Performance, an_order
from tests.docker_engine import DockerEngine

pytestmark = pytest.mark.slow
CPUS = sorted(os.sched_getaffinity(0))


@pytest.fixture(params=["direct"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def opened(driver: ContainerDriver, name: str = "main", **fields: Any) -> SessionFacts:
    return await driver.sessions.open(TRAJECTORY, SessionSpec(name, **fields), EnvironmentSpec())


async def run(driver: ContainerDriver, *command: str, **fields: Any) -> RunReport:
    name, timeout = fields.pop("name", "act_1"), fields.pop("timeout_seconds", 60.0)
    spec = ExecSpec(command, session="main", **fields)
    order = an_order(name=name, spec=spec, timeout_seconds=timeout)
    core = Allocation(ResourceId("cpu:n1"), 1000, (CPUS[-1],))
    return await driver.run(RunOrder(order.action, (core,)), lambda: None)


async def result(driver: ContainerDriver, *command: str, **fields: Any) -> SessionResult:
    report = await run(driver, *command, **fields)
    assert report.outcome is Outcome.COMPLETED, report
    assert isinstance(report.result, SessionResult), report.result
    return report.result


def living(driver: ContainerDriver) -> LivingContainer:
    assert driver._tools is not None
    return driver._tools.living.of(TRAJECTORY)


@pytest.mark.parametrize(("shell", "pty"), [("bash", True), ("bash", False), ("sh", True)])
async def test_a_session_lasts_between_actions(
    driver: ContainerDriver, shell: str, pty: bool
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


async def test_a_session_is_confined_as_a_command_is(driver: ContainerDriver) -> None:
    await opened(driver)
    found = await result(
        driver, "grep -E 'CapEff|NoNewPrivs' /proc/self/status; touch /.tangram/x; unshare -U true"
    )
    assert "CapEff:\t0000000000000000" in found.stdout
    assert "NoNewPrivs:\t1" in found.stdout
    assert "Read-only file system" in found.stdout
    assert found.exit_code != 0


async def test_a_command_has_the_granted_cores_and_what_it_leaves_the_shared_ones(
    driver: ContainerDriver,
) -> None:
    await opened(driver)
    first = await result(driver, "grep Cpus_allowed_list /proc/self/status; sleep 600 &")
    assert f"Cpus_allowed_list:\t{CPUS[-1]}\r\n" in first.stdout
    environment = living(driver).environment
    assert environment.share == driver._occupied
    assert environment.group is not None
    assert environment.group.effective_cpus() == driver._parking


async def test_a_program_that_waits_for_input_goes_on(driver: ContainerDriver) -> None:
    await opened(driver)
    waiting = await result(driver, "read -p 'Go? ' x; echo went $x", expect=ExpectSpec(r"Go\? $"))
    assert (waiting.exit_code, waiting.session) == (None, "busy")
    assert "went on" in (await result(driver, stdin="on\n")).stdout


async def test_actions_beside_a_session_end_nothing_of_it(
    driver: ContainerDriver, sleep: str
) -> None:
    await opened(driver)
    await result(driver, f"{sleep} & echo $! >pid")
    stopped = an_order("sleep", "600", name="act_2", timeout_seconds=0.2)
    assert (await driver.run(stopped, lambda: None)).outcome is Outcome.TIMEOUT
    assert (await driver.run(an_order("true", name="act_3"), lambda: None)).detail is None
    assert (await result(driver, "kill -0 $(cat pid); echo $?")).stdout == "0\r\n"
    assert {each.owner for each in living(driver).processes()} == {"session:main"}
    await driver.remove_environment(TRAJECTORY)


async def test_a_session_is_opened_and_used_while_an_action_runs(driver: ContainerDriver) -> None:
    beside = Performance(driver, an_order("sleep", "600", name="act_2"))
    await beside.started.wait()
    await opened(driver)
    assert (await result(driver, "echo beside")).stdout == "beside\r\n"
    driver.stop(beside_id(), Outcome.CANCELLED, "enough")
    assert (await beside.task).outcome is Outcome.CANCELLED
    assert (await result(driver, "echo after")).stdout == "after\r\n"


def beside_id() -> Any:
    return an_order("true", name="act_2").action.id


async def test_a_time_out_ends_the_program_and_no_session(driver: ContainerDriver) -> None:
    await opened(driver)
    report = await run(driver, "sleep 600", timeout_seconds=0.3)
    assert report.outcome is Outcome.TIMEOUT
    assert (await result(driver, "echo usable")).stdout.endswith("usable\r\n")


async def test_nothing_of_a_session_runs_while_a_reward_is_judged(driver: ContainerDriver) -> None:
    """What an agent left running must not change what is judged; afterwards it goes on."""
    await opened(driver)
    await result(
        driver,
        "(while sleep 0.01; do echo x >>beats; done) & until [ -s beats ]; do sleep 0.01; done",
    )
    spec = ExecSpec(("sh", "-c", "one=$(wc -c <beats); sleep 0.5; test $one = $(wc -c <beats)"))
    order = an_order(spec=spec, name="act_2")
    action = type(order.action)(
        id=order.action.id, project="lab", task="swe", kind=order.action.kind,
        trajectory="trj-1", exec=spec, reward=RewardRule("exit_code"),
    )  # fmt: skip
    report = await driver.run(RunOrder(action, ()), lambda: None)
    assert report.result is not None
    assert report.result.exit_code == 0, report
    await result(driver, "rm beats; while [ ! -s beats ]; do sleep 0.05; done")


async def test_an_environment_that_ends_ends_its_sessions(
    driver: ContainerDriver, sleep: str
) -> None:
    await opened(driver)
    await result(driver, f"{sleep} &")
    await driver.remove_environment(TRAJECTORY)
    assert processes_with(sleep.split()[1]) == []
    with pytest.raises(InvalidRequest, match="no environment"):
        driver.sessions.get(TRAJECTORY, "main")


async def test_an_init_that_an_agent_kills_is_started_again(driver: ContainerDriver) -> None:
    await opened(driver)
    before = living(driver)
    os.kill(before.pid, signal.SIGKILL)
    async with asyncio.timeout(20):
        while not before.ended:
            await asyncio.sleep(0.01)
    await opened(driver)
    assert (await result(driver, "echo usable")).stdout == "usable\r\n"
    assert (await driver.run(an_order("true", name="act_2"), lambda: None)).detail is None


async def test_sessions_survive_a_crash_of_their_worker_and_actions_do_not(
    engine: DockerEngine, tmp_path: Path, sleep: str
) -> None:
    first = a_driver(engine, tmp_path, "direct")
    await first.open()
    await opened(first)
    await result(first, "cd /tmp; export KEPT=1; sleep 600 & echo $! >pid")
    running = Performance(first, an_order(*sleep.split(), name="act_2"))
    await running.started.wait()
    async with asyncio.timeout(20):
        while not processes_with(sleep.split()[1]):
            await asyncio.sleep(0.01)
    first._sessions.close()
    assert first._tools is not None
    first._tools.living.close()
    await crash(first)
    second = a_driver(engine, tmp_path, "direct")
    [left] = [each for each in await second.open() if each.action_id == "act_2"]
    try:
        assert left.ended
        assert processes_with(sleep.split()[1]) == []
        assert second.sessions.get(TRAJECTORY, "main").state == "idle"
        kept = await result(second, "echo $KEPT $PWD; kill -0 $(cat pid); echo $?", name="act_3")
        assert kept.stdout == "1 /tmp\r\n0\r\n"
    finally:
        await second.close()


async def test_sessions_are_refused_with_the_cure_where_the_engine_runs_actions(
    engine: DockerEngine, tmp_path: Path
) -> None:
    driver = a_driver(engine, tmp_path, "api")
    await driver.open()
    try:
        with pytest.raises(Unavailable, match="control groups of containers"):
            await opened(driver)
    finally:
        await driver.close()


async def test_sessions_with_egress_are_refused(driver: ContainerDriver) -> None:
    spec = EnvironmentSpec(network=NETWORK_EGRESS)
    with pytest.raises(Conflict, match="declare network none"):
        await driver.sessions.open(TRAJECTORY, SessionSpec("main"), spec)


async def test_a_command_that_loses_a_program_to_the_limit_of_memory_ends_oom_killed(
    driver: ContainerDriver,
) -> None:
    spec = EnvironmentSpec(memory_bytes=96 * 2**20)
    await driver.sessions.open(TRAJECTORY, SessionSpec("main"), spec)
    await result(driver, "true")
    report = await run(driver, "python3 -c 'print(len(bytearray(400 << 20)))'", name="act_2")
    assert report.outcome is Outcome.OOM_KILLED, report
    assert "declare a higher environment.memory_bytes" in (report.detail or "")
    assert (await result(driver, "echo on", name="act_3")).stdout.strip() == "on"
