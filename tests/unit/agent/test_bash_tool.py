"""The bash tool says how commands ended, interrupts what takes too long, and never passes a new shell off as the old one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from domain.errors import Unavailable
from rollout.agent.bash import BashTool
from rollout.agent.run_agent import run_agent
from rollout.agent.tools import ToolRefused
from tests.unit.agent.jobs import ScriptedJob


def ended(outcome: str = "completed", **members: Any) -> tuple[str, dict[str, Any]]:
    """Return the end of an action in a session."""
    result = {"exit_code": 0, "stdout": "", "stderr": "", "session": "idle", **members}
    return outcome, {name: value for name, value in result.items() if value is not ...}


def a_job(*ends: tuple[str, dict[str, Any]]) -> ScriptedJob:
    """Return a job whose actions end so, one after the other."""
    left = list(ends)
    return ScriptedJob(lambda _: left.pop(0))


async def say(tool: BashTool, job: ScriptedJob, turn: int, **arguments: Any) -> str:
    return await tool.call(job, arguments, f"{turn}.0")


def works(job: ScriptedJob) -> list[Mapping[str, Any]]:
    """Return what the actions ran."""
    return [members["exec"] for members in job.called.values()]


async def test_a_command_is_an_action_in_a_session_that_was_opened_once() -> None:
    job = a_job(ended(stdout="/workspace\r\n"), ended(exit_code=2))
    tool = BashTool(cost={"cpu": 2}, cwd="/repo", env={"A": "1"})

    seen = [await say(tool, job, 0, command="pwd"), await say(tool, job, 1, command="false")]

    assert seen == ["/workspace\n[exit status 0]", "[exit status 2]"]
    [(name, members)] = job.opened
    assert (name, members["shell"], members["cwd"], members["env"]["A"]) == (
        "bash-1", "bash", "/repo", "1",
    )  # fmt: skip
    assert {**job.called["0.0"], "exec": None} == {
        "kind": "exec", "cost": {"cpu": 2}, "timeout_seconds": 120.0, "exec": None,
    }  # fmt: skip
    assert works(job)[0] == {
        "session": "bash-1",
        "command": ["pwd"],
        "output": {"limit_bytes": 30_000, "keep": "head_tail"},
        "expect": {"input": True},
    }


async def test_a_command_that_is_not_done_in_its_time_is_interrupted() -> None:
    job = a_job(
        ended("timeout", exit_code=None, session="busy", stdout="1\n"), ended(stdout="^C\r\n")
    )
    tool = BashTool(most_seconds=30)

    seen = await say(tool, job, 0, command="sleep 100", timeout=99)

    assert seen == "1\n^C\n[Not done after 30 s: it was interrupted.]"
    assert list(job.called) == ["0.0", "0.0.after"]
    assert job.called["0.0"]["timeout_seconds"] == 30
    assert works(job)[1]["command"] == []


async def test_a_program_that_waits_gets_a_line_a_key_or_is_ended_by_the_next_command() -> None:
    waits: dict[str, Any] = {"exit_code": None, "session": "busy"}
    job = a_job(
        ended(**waits, stdout="Name? "), ended(**waits, stdout="Ada\r\n? "), ended(exit_code=130),
        ended(**waits), ended("timeout"), ended(),
    )  # fmt: skip
    tool = BashTool()

    assert await say(tool, job, 0, command="ask") == (
        "Name? \n[The program waits for input: give it with `input`.]"
    )
    await say(tool, job, 1, input="Ada")
    assert await say(tool, job, 2, input="C-c") == "[exit status 130]"
    await say(tool, job, 3, command="ask")
    after = await say(tool, job, 4, command="ls")

    assert after == "[The program that waited for input was ended.]\n[exit status 0]"
    typed = [(each["command"], each.get("stdin")) for each in works(job)]
    assert typed[1:3] == [([], "Ada\n"), ([], "\x03")]
    assert list(job.called)[-2:] == ["4.0.before", "4.0"]


async def test_a_shell_that_ended_is_followed_by_a_new_one_and_the_model_sees_it() -> None:
    gone = ended(exit_code=127, session=..., stderr="tangram: there is no session 'bash-2'\n")
    job = a_job(ended(exit_code=7, session="ended"), ended(), gone, ended())
    tool = BashTool()

    first = await say(tool, job, 0, command="exit 7")
    second = await say(tool, job, 1, command="pwd")
    third = await say(tool, job, 2, command="ls")

    assert first == "[The shell ended with exit status 7. The next command has a new one.]"
    assert second.startswith("[This is a new shell, since the one before was gone: it has ended.")
    assert "there is no session 'bash-2'" in third
    assert [name for name, _ in job.opened] == ["bash-1", "bash-2", "bash-3"]
    assert list(job.called) == ["0.0", "1.0", "2.0", "2.0.again1"]


async def test_a_shell_that_never_opens_is_not_tried_for_ever() -> None:
    gone = ended(exit_code=126, session=..., stderr="tangram: session is replaced\n")
    job = a_job(gone, gone, gone)

    seen = await say(BashTool(), job, 0, command="ls")

    assert "It was not run: tangram: session is replaced" in seen
    assert len(job.called) == 3


async def test_an_environment_without_bash_has_another_shell() -> None:
    job = a_job(ended())
    await say(BashTool(shell="sh"), job, 0, command="ls")
    assert job.opened[0][1]["shell"] == "sh"


async def test_two_tools_of_one_name_are_a_mistake_of_the_handler() -> None:
    job = a_job()
    with pytest.raises(ValueError, match="two tools have one name: bash, bash"):
        await run_agent(job, None, [], [BashTool(), BashTool()])  # type: ignore[arg-type]


async def test_a_command_whose_result_is_missing_is_not_run_again() -> None:
    job = ScriptedJob(lambda _: ("completed", {}))
    with pytest.raises(Unavailable):
        await say(BashTool(), job, 0, command="echo x >>log")
    assert len(job.called) == 1


async def test_other_ends_are_named() -> None:
    job = a_job(ended("oom_killed", exit_code=137, detail="python used 2 GiB"), ended("cancelled", session=...))  # fmt: skip
    tool = BashTool()

    assert await say(tool, job, 0, command="a") == "[It ended oom_killed: python used 2 GiB.]"
    assert await say(tool, job, 1, command="a") == "[It ended cancelled.]"


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"command": ""},
        {"command": 3},
        {"command": "ls", "input": "x"},
        {"input": "x"},
        {"command": "ls", "timeout": "soon"},
        {"command": "ls", "timeout": float("nan")},
        {"command": "ls", "timeout": True},
    ],
)
async def test_arguments_that_say_nothing_are_refused(arguments: dict[str, Any]) -> None:
    job = a_job()
    with pytest.raises(ToolRefused):
        await say(BashTool(), job, 0, **arguments)
    assert job.called == {}
