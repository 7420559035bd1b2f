"""Tools at the action server: what they ask it, and what the model sees of its answers and of its ends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from contract.requests import ActionRequest
from contract.session_routes import SessionRequest
from domain.errors import Unavailable
from domain.manifest import read
from rollout.agent.action_server import MAX_REQUEST_BYTES, ActionServer
from rollout.agent.bash import BashTool
from rollout.agent.environment_tools import EditorTool, IPythonTool
from rollout.agent.tools import Tool, ToolRefused
from rollout.agent.web_search import WebSearchTool
from scheduler.runtime.gateway.session_checks import check_session
from tests.unit.agent.jobs import ScriptedJob


def answered(**members: Any) -> Any:
    """Return a script whose server answers so, after a rest of an earlier line."""

    def script(action: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        asked = json.loads(action["exec"]["stdin"])
        answer = {"status": "ok", "output": "", **members, "end": asked["id"]}
        stdout = "\n" + json.dumps(answer)
        return "completed", {"exit_code": None, "stdout": stdout, "session": "running"}

    return script


async def test_a_cell_is_an_action_in_the_session_of_the_server() -> None:
    job = ScriptedJob(answered(output="42\n"))
    server = ActionServer(python="python3.9", cost={"cpu": 2}, cwd="/repo")
    python, editor = IPythonTool(server), EditorTool(server)

    seen = await python.call(job, {"code": "6 * 7"}, "0.0")
    await editor.call(job, {"command": "view", "path": "/a"}, "0.1")

    assert seen == "42"
    [(name, members)] = job.opened
    assert (name, members["pty"], members["cwd"]) == ("actions-1", False, "/repo")
    assert members["shell"][:3] == ["python3.9", "-u", "-c"]
    cell, edit = job.called.values()
    assert (cell["cost"], cell["timeout_seconds"]) == ({"cpu": 2}, 130.0)
    assert cell["exec"]["session"] == edit["exec"]["session"] == "actions-1"
    assert cell["exec"]["expect"] == {"pattern": '"end":\\ "0\\.0"\\}'}
    assert json.loads(cell["exec"]["stdin"]) == {
        "id": "0.0", "tool": "ipython", "arguments": {"code": "6 * 7"}, "seconds": 120.0,
    }  # fmt: skip
    assert json.loads(edit["exec"]["stdin"])["arguments"] == {"command": "view", "path": "/a"}


@pytest.mark.parametrize(
    ("answer", "seen"),
    [
        ({}, "[no output]"),
        ({"status": "error", "output": "NameError\n"}, "NameError"),
        ({"status": "timeout", "output": "1\n"}, "1\n[Not done after 5 s: it was interrupted.]"),
        (
            {"status": "died", "died": -11},
            "[It ended: the kernel was ended by signal 11. Its variables are gone.]",
        ),
        ({"output": "\x1b[31mred\x1b[0m \ud800"}, "red ?"),
    ],
)
async def test_each_end_of_a_cell_is_named(answer: dict[str, Any], seen: str) -> None:
    tool = IPythonTool(timeout_seconds=5)
    found = await tool.call(ScriptedJob(answered(**answer)), {"code": "x"}, "0.0")
    assert found.encode("utf-8", "replace").decode() == seen


async def test_a_server_that_ended_is_followed_by_a_new_one_and_the_model_sees_it() -> None:
    ends: list[Any] = [
        ("completed", {"exit_code": 137, "stdout": "", "stderr": "", "session": "ended",
                       "detail": "the session ended with exit status 137"}),
        answered(output="0"),
    ]  # fmt: skip

    def script(action: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        end = ends.pop(0)
        return end if isinstance(end, tuple) else end(action)

    job, tool = ScriptedJob(script), IPythonTool()

    first = await tool.call(job, {"code": "x = 1"}, "0.0")
    second = await tool.call(job, {"code": "x"}, "1.0")

    assert first.startswith("[It ended: the session ended with exit status 137.")
    assert (
        second
        == "0\n[The server had ended (it has ended) and is a new one. Its variables are gone.]"
    )
    assert [name for name, _ in job.opened] == ["actions-1", "actions-2"]


async def test_code_is_a_text() -> None:
    with pytest.raises(ToolRefused):
        await IPythonTool().call(ScriptedJob(answered()), {"code": 3}, "0.0")


async def test_arguments_that_no_session_takes_are_refused() -> None:
    """A refusal of the session would pass for a server that is gone, and its variables with it."""
    job = ScriptedJob(answered())
    edit = {"command": "create", "path": "/a", "file_text": "x" * MAX_REQUEST_BYTES}
    with pytest.raises(ToolRefused, match="too long"):
        await EditorTool().call(job, edit, "0.0")
    assert job.called == {}


async def test_the_api_takes_what_tools_ask_for() -> None:
    job = ScriptedJob(lambda _: ("completed", {"session": "idle", "stdout": "", "status": 404}))
    server = ActionServer()
    tools: list[tuple[Tool, dict[str, Any]]] = [
        (BashTool(), {"command": "ls"}),
        (IPythonTool(server), {"code": "1"}),
        (EditorTool(server), {"command": "view", "path": "/a"}),
        (WebSearchTool(), {"query": "q"}),
    ]
    for number, (tool, arguments) in enumerate(tools):
        await tool.call(job, arguments, f"0.{number}")
    for members in job.called.values():
        request = read(ActionRequest, {**members, "task": "t", "trajectory": "t1"})
        if request.exec is not None:
            check_session(request, request.exec)
    for name, members in job.opened:
        msgspec.convert({**members, "name": name}, SessionRequest)
    assert (len(job.called), len(job.opened)) == (4, 2)


def search(status: int = 200, body: str = "", outcome: str = "completed") -> ScriptedJob:
    return ScriptedJob(lambda _: (outcome, {"status": status, "body": body}))


async def test_a_search_is_a_call_of_the_api_under_its_quota() -> None:
    results = [
        {"title": "Agents", "url": "https://a", "content": "x" * 30},
        {"title": "More", "url": "https://b", "content": None},
    ]
    job = search(body=json.dumps({"answer": "Yes.", "results": results}))
    tool = WebSearchTool("api:web", results=2, result_characters=10, members={"topic": "news"})

    seen = await tool.call(job, {"query": "agents"}, "2.0")

    assert seen == "Yes.\n\n1. Agents\nhttps://a\nxxxxxxxxxx […]\n\n2. More\nhttps://b"
    [members] = job.called.values()
    assert (members["kind"], members["cost"], members["replay_safe"]) == (
        "call", {"api:web": 1}, True,
    )  # fmt: skip
    assert members["call"] == {
        "target": "api:web", "path": "/search",
        "json": {"topic": "news", "max_results": 2, "query": "agents"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("job", "seen"),
    [
        (search(404), "[The search was answered with status 404.]"),
        (search(body="<html>"), "[The answer of the search cannot be read.]"),
        (search(body='{"results": []}'), "[Nothing was found.]"),
    ],
)
async def test_an_answer_without_results_says_so(job: ScriptedJob, seen: str) -> None:
    assert await WebSearchTool().call(job, {"query": "q"}, "0.0") == seen


@pytest.mark.parametrize("job", [search(503), search(429), search(outcome="timeout")])
async def test_an_api_that_fails_is_never_the_agents_mistake(job: ScriptedJob) -> None:
    with pytest.raises(Unavailable):
        await WebSearchTool().call(job, {"query": "q"}, "0.0")
