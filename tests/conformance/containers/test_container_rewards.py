"""Rewards of commands in containers: a file is evidence only when the command has made it."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from domain.action import ExecSpec
from domain.rewards import RewardRule
from managers.common.reward_evidence import RewardReading, read_reward
from managers.cpu.containers import ContainerDriver
from tests.conformance.driver import TRAJECTORY, an_order
from tests.conformance.evader import EVADER, JUDGE, LEAVE, LOOK, urge

JSON = RewardRule("json", "score", "score.json")
PYTEST = RewardRule("exit_code", runner="pytest")
GIVEN = RewardRule("exit_code", files={"tests/it": "genuine"})
REPORT = "<testsuite><testcase/></testsuite>"


@pytest.mark.parametrize(
    ("rule", "script", "value", "reason"),
    [
        (JSON, "echo '{\"score\": 0.5}' > score.json", 0.5, ""),
        (JSON, "true", None, "did not write 'score.json'"),
        (PYTEST, f"echo '{REPORT}' > ${{PYTEST_ADDOPTS#*=}}", 1.0, ""),
        (PYTEST, "python3 -m nosuchmodule; exit 1", None, "the runner left no report"),
        (RewardRule("exit_code"), "nosuchcommand", None, "was not found"),
        (GIVEN, 'test "$(cat tests/it)" = genuine', 1.0, ""),
    ],
)
async def test_a_container_leaves_the_evidence_of_its_command_alone(
    driver: ContainerDriver, rule: RewardRule, script: str, value: float | None, reason: str
) -> None:
    await driver.put_file(TRAJECTORY, "score.json", b'{"score": 1}')
    plant = an_order(
        "sh", "-c", "mkdir mine; echo forged > mine/it; ln -s mine tests", name="act_0"
    )
    await driver.run(plant, lambda: None)
    order = an_order(spec=ExecSpec(("sh", "-c", script)))
    order = replace(order, action=replace(order.action, reward=rule))
    report = await driver.run(order, lambda: None)
    reading = read_reward(rule, report)
    assert reading.value == value, (reading, report)
    assert reason in reading.reason
    assert bool(reading.reason) == (reading != RewardReading(value))


@pytest.mark.parametrize("way", ["direct"])  # the other one ends all with its action
@pytest.mark.parametrize("how", ["replaces", "open"])
async def test_a_program_that_continues_itself_changes_nothing_that_is_judged(
    driver: ContainerDriver, how: str
) -> None:
    await driver.put_file(TRAJECTORY, "evader.py", EVADER.encode())
    leave = an_order(spec=ExecSpec(("sh", "-c", LEAVE), env={"HOW": how}), name="act_0")
    left = await driver.run(leave, lambda: None)
    assert left.detail == "left 1 process in the background", left
    assert driver.environments is not None
    urge(each.pid for each in driver.environments.of(TRAJECTORY).processes())
    order = an_order(spec=ExecSpec(("sh", "-c", JUDGE)))
    order = replace(order, action=replace(order.action, reward=RewardRule("exit_code")))
    report = await driver.run(order, lambda: None)
    assert read_reward(RewardRule("exit_code"), report).value == 1.0, report
    said: set[str] = set()
    async with asyncio.timeout(60):
        while len(said) < 2:
            look = await driver.run(an_order("sh", "-c", LOOK, name="act_2"), lambda: None)
            assert look.result is not None
            said.add(look.result.stdout)
    await driver.remove_environment(TRAJECTORY)
