"""While a reward command runs, no program of its environment changes what it reads: not even one that goes on."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from domain.action import EnvironmentSpec, ExecSpec, Outcome
from domain.ports import RunReport
from domain.ports.files import FileGuarding
from domain.ports.sessions import SessionSpec
from domain.rewards import RewardRule
from managers.common.reward_evidence import RewardReading, read_reward
from managers.cpu.environment.kept import KeptEnvironment
from managers.cpu.environment.protocol import RewardRuns
from managers.cpu.environment.sealing import MARK
from managers.cpu.process import ProcessDriver
from tests.conformance.driver import TRAJECTORY, Performance, an_order
from tests.conformance.evader import EVADER, JUDGE, LEAVE, LOOK, urge
from tests.conformance.isolations import a_driver, isolations

pytestmark = [
    pytest.mark.skipif("bwrap" not in isolations(), reason="bubblewrap does not work here"),
    pytest.mark.slow,
]
PLAIN = RewardRule("exit_code")


@pytest.fixture
def isolation() -> str:
    return "bwrap"


def living(driver: ProcessDriver) -> KeptEnvironment:
    assert driver.environments is not None
    return driver.environments.of(TRAJECTORY)


async def run(driver: ProcessDriver, script: str, name: str = "act_1", **env: str) -> RunReport:
    spec = ExecSpec(("sh", "-c", script), env=env)
    report = await driver.run(an_order(spec=spec, name=name, timeout_seconds=120), lambda: None)
    assert report.outcome is Outcome.COMPLETED, report
    return report


async def judged(
    driver: ProcessDriver, script: str, rule: RewardRule = PLAIN
) -> tuple[RunReport, RewardReading]:
    order = an_order(spec=ExecSpec(("sh", "-c", script)), name="act_judge", timeout_seconds=120)
    order = replace(order, action=replace(order.action, reward=rule))
    report = await driver.run(order, lambda: None)
    return report, read_reward(rule, report)


async def leave_evader(driver: ProcessDriver, how: str) -> None:
    await driver.put_file(TRAJECTORY, "evader.py", EVADER.encode())
    await run(driver, LEAVE, HOW=how)
    urge(each.pid for each in living(driver).processes())


async def goes_on(driver: ProcessDriver) -> None:
    """Return once the evader has written again."""
    before = (await run(driver, LOOK, "act_look")).result
    async with asyncio.timeout(60):
        while (await run(driver, LOOK, "act_look")).result == before:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("how", ["replaces", "open"])
async def test_a_program_that_continues_itself_changes_nothing_that_is_judged(
    driver: ProcessDriver, how: str
) -> None:
    await leave_evader(driver, how)
    report, reading = await judged(driver, JUDGE)
    assert reading.value == 1.0, report
    await goes_on(driver)


async def test_a_seal_needs_no_control_groups(driver: ProcessDriver) -> None:
    await leave_evader(driver, "replaces")
    living(driver).limits.freezer = None
    report, reading = await judged(driver, JUDGE)
    assert reading.value == 1.0, report
    await goes_on(driver)
    assert not (living(driver).directory / MARK).exists()


async def test_a_reward_command_writes_into_the_sealed_tree(driver: ProcessDriver) -> None:
    await leave_evader(driver, "replaces")
    _, reading = await judged(driver, "echo 1 >written && echo 1 >/tmp/written && rm evader.py")
    assert reading.value == 1.0
    seen = await run(driver, "cat written /tmp/written; ls evader.py 2>/dev/null", "act_2")
    assert seen.result is not None
    assert seen.result.stdout == "1\n1\n"


async def test_a_score_that_a_program_writes_without_pause_is_no_evidence(
    driver: ProcessDriver,
) -> None:
    """It writes between the deletion of the file and the seal; its environment's programs are ended for it."""
    forging = EVADER.replace(
        'f"{place}/judged")', 'f"{place}/judged"); open("score.json", "w").write(\'{"score": 1}\')'
    )
    await driver.put_file(TRAJECTORY, "evader.py", forging.encode())
    await run(driver, LEAVE, HOW="replaces")
    urge(each.pid for each in living(driver).processes())
    rule = RewardRule("json", "score", "score.json", files={"given": "0.25"})
    for _ in range(3):
        _, silent = await judged(driver, "true", rule)
        assert silent.value is None
        _, reading = await judged(driver, "printf '{\"score\": %s}' $(cat given) >score.json", rule)
        assert reading == RewardReading(0.25)


async def test_a_score_in_a_closed_directory_is_no_evidence(driver: ProcessDriver) -> None:
    await run(driver, "mkdir out; echo '{\"score\": 1}' >out/score.json; chmod 500 out")
    _, reading = await judged(driver, "true", RewardRule("json", "score", "out/score.json"))
    assert reading.value is None


async def test_nothing_else_starts_while_a_reward_command_runs(driver: ProcessDriver) -> None:
    await run(driver, "true")
    order = an_order("sh", "-c", "until [ -e go ]; do sleep 0.01; done", name="act_judge")
    order = replace(order, action=replace(order.action, reward=PLAIN))
    assert isinstance(driver, FileGuarding)
    judging = Performance(driver, order)
    await judging.started.wait()
    with pytest.raises(RewardRuns):
        await driver.sessions.open(TRAJECTORY, SessionSpec("main"), EnvironmentSpec())
    with pytest.raises(RewardRuns):
        driver.check_writable(TRAJECTORY)
    driver.stop(order.id, Outcome.CANCELLED, "enough")
    await judging.task
    await driver.sessions.open(TRAJECTORY, SessionSpec("main"), EnvironmentSpec())


async def test_files_that_a_dead_worker_left_sealed_are_writable_again(tmp_path: Path) -> None:
    first = a_driver(tmp_path, "bwrap", environment_keep="true")
    await first.open()
    await run(first, "sleep 600 & echo $! >pid")
    environments = first.environments
    assert environments is not None
    await asyncio.to_thread(environments.sealing._seal, living(first))
    await first.close()
    second = a_driver(tmp_path, "bwrap")
    await second.open()
    try:
        report = await run(second, "kill -0 $(cat pid) && echo x >written && cat written", "act_2")
        assert report.result is not None
        assert report.result.stdout == "x\n"
        assert os.listdir(living(second).directory).count(MARK) == 0
    finally:
        await second.close()


async def test_a_program_that_went_on_where_nothing_can_be_sealed_leaves_no_reward(
    driver: ProcessDriver,
) -> None:
    await run(driver, "(while :; do echo on; done) >log & until [ -s log ]; do sleep 0.01; done")
    environment = living(driver)
    environment.limits.freezer = None
    order = an_order("sleep", "1", name="act_judge")
    judging = Performance(driver, replace(order, action=replace(order.action, reward=PLAIN)))
    await judging.started.wait()
    environment.thaw_now()
    report = await judging.task
    assert report.outcome is Outcome.INFRA_FAILED, report
    assert "went on while the reward command ran" in (report.detail or "")
    assert environment.ended
    _, again = await judged(driver, "true")
    assert again.value == 1.0


async def test_a_stopped_server_with_an_open_log_does_not_hinder_a_reward(
    driver: ProcessDriver,
) -> None:
    await run(
        driver, "(while :; do date; sleep 0.01; done) >log & until [ -s log ]; do sleep 0.01; done"
    )
    living(driver).limits.freezer = None
    report, reading = await judged(driver, 'a=$(cat log); sleep 0.3; [ "$a" = "$(cat log)" ]')
    assert reading.value == 1.0, report
