"""Rewards of real commands: a file is evidence only when the command itself has made it."""

from __future__ import annotations

import asyncio
import io
import tarfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from domain.action import ExecSpec, Outcome
from domain.ports import RunReport
from domain.rewards import RewardRule
from managers.common.reward_evidence import RewardReading, read_reward
from managers.cpu.process import ProcessDriver
from tests.conformance.driver import TRAJECTORY, an_order

PYTEST = RewardRule("exit_code", runner="pytest")


@pytest.fixture(scope="module")
def pytest_as_tar() -> bytes:
    """The pytest of these tests, for the Python of a sandbox, which has none."""
    site = Path(pytest.__file__).parent.parent
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name in ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments"):
            for module in (site / name).rglob("*.py"):
                archive.add(module, module.relative_to(site))
        archive.add(site / "py.py", "py.py")
    return content.getvalue()


async def rewarded(
    driver: ProcessDriver,
    rule: RewardRule,
    script: str,
    *,
    trajectory: str | None = "trj-1",
    timeout_seconds: float | None = 180.0,
    env: dict[str, str] | None = None,
) -> tuple[RunReport, RewardReading]:
    """Run a shell script whose reward follows ``rule``."""
    spec = ExecSpec(("sh", "-c", script), env=env or {})
    order = an_order(spec=spec, trajectory=trajectory, timeout_seconds=timeout_seconds)
    order = replace(order, action=replace(order.action, reward=rule))
    report = await driver.run(order, lambda: None)
    return report, read_reward(rule, report)


@pytest.mark.parametrize(
    ("script", "value"),
    [
        ("true", 1.0),
        ("exit 1", 0.0),
        ("nosuchcommand", None),
        ("exit 2", None),
        ("kill -9 $$", None),
    ],
)
async def test_an_exit_code_is_a_reward_only_as_0_or_1(
    driver: ProcessDriver, script: str, value: float | None
) -> None:
    report, reading = await rewarded(driver, RewardRule("exit_code"), script)
    assert report.outcome is Outcome.COMPLETED
    assert reading.value == value


@pytest.mark.parametrize("trajectory", ["trj-1", None])
async def test_a_file_of_the_command_is_read_with_and_without_a_trajectory(
    driver: ProcessDriver, trajectory: str | None
) -> None:
    rule = RewardRule("json", "score", "out/score.json")
    script = "mkdir -p out && echo '{\"score\": 0.5}' > out/score.json; exit 7"
    _, reading = await rewarded(driver, rule, script, trajectory=trajectory)
    assert reading == RewardReading(0.5)


async def test_a_file_of_an_earlier_command_is_no_evidence(driver: ProcessDriver) -> None:
    rule = RewardRule("json", "score", "score.json")
    await driver.put_file(TRAJECTORY, "score.json", b'{"score": 1}')
    _, reading = await rewarded(driver, rule, "true")
    assert reading == RewardReading(None, "no reward: the command did not write 'score.json'")


async def test_a_link_to_a_file_is_no_evidence(driver: ProcessDriver) -> None:
    rule = RewardRule("json", "score", "score.json")
    script = "echo '{\"score\": 1}' > mine; ln -s mine score.json"
    _, reading = await rewarded(driver, rule, script)
    assert reading.value is None
    assert "link" in reading.reason


@pytest.mark.parametrize("script", ["python3 -m pytest -q", "exit 1", "exit 0"])
async def test_without_the_runners_report_there_is_no_reward(
    driver: ProcessDriver, script: str
) -> None:
    env = {"PYTHONPATH": ""}
    report, reading = await rewarded(driver, PYTEST, script, env=env)
    assert report.outcome is Outcome.COMPLETED
    assert reading == RewardReading(
        None, "no reward: the runner left no report, so no test ran: is it installed?"
    )


@pytest.mark.parametrize(
    ("tests", "value", "reason"),
    [
        ("def test_a(): pass", 1.0, ""),
        ("def test_a(): pass\ndef test_b(): assert 0", 0.0, ""),
        ("import unittest\ndef test_a(): raise unittest.SkipTest", None, "no test ran (1 skipped)"),
        ("import nosuchmodule", None, "exit code 2"),
        ("", None, "exit code 5"),
    ],
)
async def test_pytest_is_rewarded_by_its_own_report(
    driver: ProcessDriver, pytest_as_tar: bytes, tests: str, value: float | None, reason: str
) -> None:
    await driver.put_file(TRAJECTORY, "site.tar", pytest_as_tar)
    await driver.put_file(TRAJECTORY, "repo/test_it.py", tests.encode())
    env = {"PYTHONPATH": "../site", "PYTEST_ADDOPTS": "-p no:cacheprovider"}
    script = "mkdir site && tar -C site -xf site.tar && cd repo && python3 -B -m pytest -q ."
    report, reading = await rewarded(driver, PYTEST, script, env=env)
    assert report.result is not None
    said = report.result.stdout + report.result.stderr
    assert (reading.value, reason in reading.reason) == (value, True), said
    left, _ = await rewarded(driver, RewardRule("exit_code"), "ls -A")
    assert left.result is not None
    assert left.result.stdout == "repo\nsite\nsite.tar\n", "the report was read and deleted"


def given(**files: str) -> RewardRule:
    """Return a rule with files of the submitter; ``_`` in a name is ``/``."""
    return RewardRule("exit_code", files={name.replace("_", "/"): files[name] for name in files})


#: What an agent may leave where the submitter's file belongs.
PLANTS = {
    "nothing": "true",
    "a file": "mkdir tests; echo forged > tests/it",
    "a link": "mkdir tests; echo forged > mine; ln -s ../mine tests/it",
    "a link to the host": "mkdir tests; ln -s /etc/passwd tests/it",
    "a directory": "mkdir -p tests/it; echo forged > tests/it/x",
    "a link as parent": "mkdir mine; echo forged > mine/it; ln -s mine tests",
    "a link to the host as parent": "ln -s /etc tests",
    "a file as parent": "echo forged > tests",
    "a closed parent": "mkdir tests; echo forged > tests/it; chmod 000 tests",
    "a pipe": "mkdir tests; mkfifo tests/it",
}


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS.keys())
async def test_a_reward_command_reads_the_files_of_the_submitter(
    driver: ProcessDriver, plant: str
) -> None:
    await rewarded(driver, RewardRule("exit_code"), plant)
    report, reading = await rewarded(driver, given(tests_it="genuine"), "cat tests/it")
    assert report.result is not None
    assert report.result.stdout == "genuine", report
    assert reading.value == 1.0


async def test_files_of_the_submitter_stay_out_of_the_environment(driver: ProcessDriver) -> None:
    await driver.put_file(TRAJECTORY, "kept", b"x")
    rule = given(a_b_it="secret", it="secret")
    _, reading = await rewarded(driver, rule, "test -s it && test -s a/b/it")
    assert reading.value == 1.0
    left, _ = await rewarded(driver, RewardRule("exit_code"), "find . -mindepth 1")
    assert left.result is not None
    assert left.result.stdout == "./kept\n"


async def test_a_file_of_the_agent_is_hidden_and_not_lost_in_a_sandbox(
    driver: ProcessDriver, isolation: str
) -> None:
    await driver.put_file(TRAJECTORY, "it", b"mine")
    await rewarded(driver, given(it="genuine"), "true")
    left, _ = await rewarded(driver, RewardRule("exit_code"), "cat it")
    assert left.result is not None
    assert left.result.stdout == ("" if isolation == "process" else "mine")


async def test_a_command_in_a_sandbox_cannot_change_the_files_of_its_reward(
    driver: ProcessDriver, isolation: str
) -> None:
    script = "echo x > it; rm -f it; mv mine it; chmod 777 it; umount it; cat it"
    report, _ = await rewarded(
        driver, given(it="genuine"), f"(echo y > mine; {script}) 2>/dev/null"
    )
    assert report.result is not None
    # Without a sandbox nothing separates a command from files of its own user.
    assert report.result.stdout == ("y\n" if isolation == "process" else "genuine")


async def test_a_reward_runs_apart_from_programs_that_an_action_left(
    driver: ProcessDriver, isolation: str
) -> None:
    script = "(while :; do echo forged > it; echo '{\"score\": 1}' > score.json; done) & sleep 0.1"
    await rewarded(driver, RewardRule("exit_code"), script)
    rule = RewardRule("json", "score", "score.json", files={"it": "genuine"})
    report, reading = await rewarded(driver, rule, "cat it; ls /proc | grep -c '^[0-9]'")
    assert report.result is not None
    assert report.result.stdout.startswith("genuine")
    assert reading.value is None
    if isolation == "bwrap":
        assert int(report.result.stdout.removeprefix("genuine")) < 8, "only its own processes"


async def test_programs_of_the_environment_are_frozen_while_a_reward_runs(
    driver: ProcessDriver, isolation: str
) -> None:
    ticking = (
        "(while :; do echo forged > it; date +%s%N > new; mv new tick; done >/dev/null 2>&1) &"
    )
    await rewarded(driver, RewardRule("exit_code"), "true")
    plain = an_order(
        spec=ExecSpec(("sh", "-c", f"{ticking} until test -s tick; do sleep 0.01; done; cat tick")),
        name="act_0",
    )
    before = await driver.run(plain, lambda: None)
    assert before.result is not None
    assert before.result.stdout
    script = 'a=$(cat tick it); sleep 0.3; b=$(cat tick it); test "$a" = "$b"'
    _, reading = await rewarded(driver, given(it="genuine"), script)
    assert reading.value == 1.0
    if isolation == "bwrap":  # elsewhere nothing outlives its action
        frozen = await driver.get_file(TRAJECTORY, "tick", 100)
        async with asyncio.timeout(60):
            while frozen == await driver.get_file(TRAJECTORY, "tick", 100):
                await asyncio.sleep(0.01)


async def test_a_reward_command_replaces_a_file_that_the_agent_wrote_before(
    driver: ProcessDriver,
) -> None:
    agent = an_order(
        spec=ExecSpec(("sh", "-c", "echo '{\"score\": 1}' > score.json")), name="act_0"
    )
    await driver.run(agent, lambda: None)
    rule = RewardRule("json", "score", "score.json", files={"given": "0.25"})
    script = "printf '{\"score\": %s}' $(cat given) > score.json"
    for _ in range(2):
        _, reading = await rewarded(driver, rule, script)
        assert reading == RewardReading(0.25)
    look = an_order(spec=ExecSpec(("sh", "-c", "cat score.json; ls")), name="act_2")
    seen = await driver.run(look, lambda: None)
    assert seen.result is not None
    assert seen.result.stdout == '{"score": 0.25}score.json\n', (
        "the environment sees the same files"
    )


async def test_a_command_that_was_stopped_has_no_reward(driver: ProcessDriver) -> None:
    rule = RewardRule("json", "score", "score.json")
    script = "echo '{\"score\": 1}' > score.json; sleep 600"
    report, reading = await rewarded(driver, rule, script, timeout_seconds=0.3)
    assert report.outcome is Outcome.TIMEOUT
    assert report.reward_file is None
    assert reading == RewardReading()
