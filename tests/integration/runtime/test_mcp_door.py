"""Clients of the Model Context Protocol work on a trajectory: both ages of the protocol, without a session."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from contract.receipts import TrajectoryDetails
from domain.action import Outcome
from domain.ports import RunOrder
from facades import mcp
from managers.cpu.fake import Play
from scheduler.runtime.gateway.scheduler_queries import SchedulerQueries
from tests.integration.runtime.rig import Rig

HERE = "http://tangram/trajectories/t1/mcp"
BOTH = {"Accept": "application/json, text/event-stream"}
MODERN = {
    "io.modelcontextprotocol/protocolVersion": mcp.MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}


def a_message(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


async def reply(client: httpx.AsyncClient, method: str, **params: Any) -> dict[str, Any]:
    answer = await client.post(HERE, json=a_message(method, **params), headers=BOTH)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    assert (found["jsonrpc"], found["id"]) == ("2.0", 1)
    return found


async def called(client: httpx.AsyncClient, tool: str, **arguments: Any) -> dict[str, Any]:
    found = await reply(client, "tools/call", name=tool, arguments=arguments)
    assert "error" not in found, found
    result: dict[str, Any] = found["result"]
    return result


def text(result: dict[str, Any]) -> str:
    return str(result["content"][0]["text"])


def echoing(order: RunOrder) -> Play:
    work = order.action.exec
    assert work is not None
    return Play(stdout=f"{work.command[-1]}\n", exit_code=3)


async def test_a_client_of_earlier_versions_begins_with_initialize(rig: Rig) -> None:
    async with rig.client() as client:
        begun = await reply(client, "initialize", protocolVersion="2025-06-18", capabilities={})
        newer = await reply(client, "initialize", protocolVersion="2031-01-01", capabilities={})
        notice = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        accepted = await client.post(HERE, json=notice, headers=BOTH)
        listed = await reply(client, "tools/list")
        pong = await reply(client, "ping")

    assert begun["result"]["protocolVersion"] == "2025-06-18"
    assert newer["result"]["protocolVersion"] == "2025-11-25"
    assert (accepted.status_code, accepted.content) == (202, b"")
    assert [tool["name"] for tool in listed["result"]["tools"]] == [
        "run", "read_file", "write_file", "fork", "submit",
    ]  # fmt: skip
    for tool in listed["result"]["tools"]:
        assert tool["description"]
        assert (tool["inputSchema"]["type"], "$defs" in tool["inputSchema"]) == ("object", False)
    assert pong["result"] == {}
    assert "resultType" not in listed["result"]


async def test_a_client_of_the_stateless_version_names_it_in_each_request(rig: Rig) -> None:
    headers = {**BOTH, "MCP-Protocol-Version": mcp.MODERN}
    async with rig.client() as client:
        found = {}
        for method in ("server/discover", "tools/list"):
            answer = await client.post(
                HERE,
                json=a_message(method, _meta=MODERN),
                headers={**headers, "Mcp-Method": method},
            )
            found[method] = answer.json()["result"]

    discovered = found["server/discover"]
    assert (discovered["supportedVersions"][0], discovered["serverInfo"]["name"]) == (
        mcp.MODERN,
        "tangram",
    )
    for result in found.values():
        assert (result["resultType"], result["cacheScope"]) == ("complete", "public")
        assert result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "tangram"


@pytest.mark.parametrize(
    ("method", "meta", "headers", "status", "code"),
    [
        ("tools/list", MODERN, {"Mcp-Method": "tools/call"}, 400, -32020),
        ("tools/list", MODERN, {"MCP-Protocol-Version": "2025-11-25"}, 400, -32020),
        ("tools/list", {next(iter(MODERN)): "1900-01-01"}, {}, 400, -32022),
        ("resources/list", MODERN, {}, 404, -32601),
        ("resources/list", {}, {}, 200, -32601),
        ("tools/call", {}, {}, 200, -32602),
    ],
)
async def test_a_message_that_is_not_served_is_an_error_of_json_rpc(
    rig: Rig, method: str, meta: dict[str, Any], headers: dict[str, str], status: int, code: int
) -> None:
    usual = {**BOTH, "MCP-Protocol-Version": mcp.MODERN, "Mcp-Method": method}
    message = a_message(method, _meta=meta, name="unknown")
    async with rig.client() as client:
        answer = await client.post(HERE, json=message, headers={**usual, **headers})

    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    if code == -32022:
        assert mcp.MODERN in answer.json()["error"]["data"]["supported"]


@pytest.mark.parametrize(
    ("method", "content", "headers", "status"),
    [
        ("POST", b"{", {}, 400),
        ("POST", b"[]", {}, 400),
        ("POST", b'{"id": 1, "method": "ping"}', {}, 400),
        ("POST", b"{}", {"Authorization": "Bearer unknown"}, 401),
        ("POST", b"{}", {"Authorization": "Bearer reader"}, 403),
        ("POST", b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}', {"Origin": "http://evil"}, 403),
        ("GET", b"", {}, 405),
        ("DELETE", b"", {}, 405),
        ("PUT", b"", {}, 404),
    ],
)
async def test_a_request_that_is_no_message_is_refused_in_the_shape_of_the_protocol(
    rig: Rig, method: str, content: bytes, headers: dict[str, str], status: int
) -> None:
    async with rig.client() as client:
        url = "http://tangram/mcp"
        answer = await client.request(method, url, content=content, headers={**BOTH, **headers})

    assert (answer.status_code, answer.json()["jsonrpc"], answer.json()["id"]) == (
        status,
        "2.0",
        None,
    )
    assert answer.json()["error"]["message"]


async def test_a_command_is_an_action_of_the_trajectory(rig: Rig) -> None:
    rig.driver.script = echoing
    async with rig.client() as client:
        done = await called(client, "run", command="echo a")
        view = (await client.get(f"/actions/{done['_meta']['tangram/action']}")).json()

    assert (text(done), done["isError"]) == ("echo a\n[exit code 3]", False)
    assert done["_meta"]["tangram/exit_code"] == 3
    assert (view["trajectory"], view["task"], view["kind"]) == ("t1", "mcp", "exec")


async def test_a_trajectory_that_a_trainer_opened_keeps_its_task(rig: Rig) -> None:
    async with rig.client() as client:
        await client.post("/trajectories", json={"id": "t1", "task": "grpo"})
        done = await called(client, "run", command="true")
        view = (await client.get(f"/actions/{done['_meta']['tangram/action']}")).json()

    assert view["task"] == "grpo"


async def test_only_the_first_call_of_a_tool_queries_the_scheduler(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    query = SchedulerQueries.trajectory

    async def counted(self: SchedulerQueries, project: str, name: str) -> TrajectoryDetails:
        asked.append(name)
        return await query(self, project, name)

    monkeypatch.setattr(SchedulerQueries, "trajectory", counted)
    async with rig.client() as client:
        await called(client, "run", command="true")
        queries = len(asked)
        await called(client, "run", command="true")
        again = len(asked)
        await client.post("/trajectories/t1/finish")
        ended = await reply(client, "tools/call", name="run", arguments={"command": "true"})
        missing = await called(client, "read_file", path="a")

    assert 0 < queries == again
    assert ended["error"]["data"]["outcome"] == "cancelled"
    assert "trajectory 't1' is finish" in text(
        missing
    )  # finishing, until its environment is removed


async def test_files_are_written_read_and_forked(rig: Rig) -> None:
    async with rig.client() as client:
        await called(client, "write_file", path="dir/a.txt", content="1\n2\n3\n")
        await called(client, "write_file", path="raw", content="/w==", base64=True)
        whole = await called(client, "read_file", path="dir/a.txt")
        middle = await called(client, "read_file", path="dir/a.txt", first_line=2, lines=1)
        raw = await called(client, "read_file", path="raw")
        await called(client, "run", command="true")
        forked = await called(client, "fork", count=2)
        names = forked["_meta"]["tangram/trajectories"]
        await called(client, "write_file", path="dir/a.txt", content="4", trajectory=names[0])
        kept = await called(client, "read_file", path="dir/a.txt", trajectory=names[1])

    assert (text(whole), text(middle)) == ("1\n2\n3\n", "2\n")
    assert raw["content"][0]["resource"]["blob"] == "/w=="
    assert text(forked).split() == names
    assert all(name.startswith("t1+") for name in names)
    assert text(kept) == "1\n2\n3\n"


async def test_a_submitted_command_goes_on_and_run_waits_for_it(rig: Rig) -> None:
    rig.driver.script = lambda _: Play(seconds=None, stdout="late\n")
    async with rig.client() as client:
        accepted = await called(client, "submit", command="make")
        action = accepted["_meta"]["tangram/action"]
        soon = await called(client, "run", action=action, timeout_seconds=0.05)
        await rig.end_action(action)
        done = await called(client, "run", action=action)
        other = await called(client, "submit", command="make", trajectory="t1")
        elsewhere = await client.post(
            HERE.replace("t1", "t2"),
            json=a_message("tools/call", name="run", arguments={"action": action}),
        )
        await rig.end_action(other["_meta"]["tangram/action"])

    assert "is running" in text(soon) or "is queued" in text(soon) or "is granted" in text(soon)
    assert text(done) == "late\n[exit code 143]"
    assert "has no action" in text(elsewhere.json()["result"])


@pytest.mark.parametrize(
    ("tool", "arguments", "says"),
    [
        ("run", {}, "give command or action"),
        ("run", {"command": 3}, "Expected `str"),
        ("run", {"command": "x", "shell": "zsh"}, "unknown field"),
        ("run", {"command": "x", "trajectory": "t2"}, "t1"),
        ("run", {"command": "x", "trajectory": "t1+none"}, "no trajectory"),
        ("run", {"action": "act_0"}, "no action"),
        ("read_file", {"path": "missing"}, "missing"),
        ("write_file", {"path": "a", "content": "?", "base64": True}, "base64"),
        ("fork", {"count": 0}, "1"),
    ],
)
async def test_what_a_model_can_repair_is_a_result_with_an_error(
    rig: Rig, tool: str, arguments: dict[str, Any], says: str
) -> None:
    async with rig.client() as client:
        await called(client, "write_file", path="there", content="x")
        result = await called(client, tool, **arguments)

    assert result["isError"]
    assert says.lower() in text(result).lower()


@pytest.mark.parametrize(
    "outcome", [Outcome.INFRA_FAILED, Outcome.UNKNOWN, Outcome.OOM_KILLED, Outcome.CANCELLED]
)
async def test_an_action_that_is_lost_is_no_exit_code(rig: Rig, outcome: Outcome) -> None:
    rig.driver.script = lambda _: Play(outcome=outcome, detail="the reason", stdout="partial")
    async with rig.client() as client:
        found = await reply(client, "tools/call", name="run", arguments={"command": "x"})

    assert found["error"]["code"] == -32603
    assert (found["error"]["data"]["outcome"], "the reason" in found["error"]["message"]) == (
        outcome,
        True,
    )


async def test_a_command_that_takes_too_long_keeps_its_output(rig: Rig) -> None:
    rig.driver.script = lambda _: Play(seconds=None, stdout="partial")
    async with rig.client() as client:
        late = await called(client, "run", command="x", timeout_seconds=0.2)

    assert late["isError"]
    assert text(late).startswith("partial\n")


async def test_a_slow_answer_shows_signs_of_life(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp, "QUICK_SECONDS", 0.05)
    monkeypatch.setattr(mcp, "SIGN_SECONDS", 0.05)
    rig.driver.script = lambda _: Play(seconds=0.5, stdout="done\n")
    call = {"name": "run", "arguments": {"command": "x"}}
    async with rig.client() as client:
        silent = await client.post(HERE, json=a_message("tools/call", **call), headers=BOTH)
        spoken = await client.post(
            HERE, json=a_message("tools/call", _meta={"progressToken": "p"}, **call), headers=BOTH
        )
        whole = await client.post(
            HERE, json=a_message("tools/call", **call), headers={"Accept": "application/json"}
        )

    def messages(answer: httpx.Response) -> list[dict[str, Any]]:
        assert answer.headers["content-type"] == "text/event-stream"
        lines = answer.text.splitlines()
        return [json.loads(line[6:]) for line in lines if line.startswith("data: ")]

    (reply,) = messages(silent)
    assert silent.text.startswith(": ")
    assert text(reply["result"]) == "done\n[exit code 0]"
    *signs, last = messages(spoken)
    progress = [sign["params"]["progress"] for sign in signs]
    assert progress == sorted(set(progress)) != []
    assert {sign["params"]["progressToken"] for sign in signs} == {"p"}
    assert last["id"] == 1
    assert whole.headers["content-type"] == "application/json"


async def test_a_client_that_goes_away_cancels_what_it_runs(rig: Rig) -> None:
    rig.driver.script = lambda _: Play(seconds=None)
    async with rig.served() as trainer:
        headers = {**BOTH, "Authorization": "Bearer trainer"}
        async with httpx.AsyncClient(headers=headers, timeout=120, trust_env=False) as stock:
            url = f"{trainer.url}/trajectories/t1/mcp"
            call = a_message("tools/call", name="run", arguments={"command": "x"})
            asking = asyncio.create_task(stock.post(url, json=call))
            async with asyncio.timeout(120):
                while not rig.driver.storage.marks:
                    await asyncio.sleep(0.005)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        assert rig.loop is not None
        async with asyncio.timeout(120):
            while rig.loop.loop.term.machine.state.actions:
                await asyncio.sleep(0.005)


async def test_a_client_with_a_session_cancels_its_own_request_alone(rig: Rig) -> None:
    rig.driver.script = lambda _: Play(seconds=None)
    async with rig.client() as client:
        first, second = [
            {**BOTH, "Mcp-Session-Id": begun.headers["mcp-session-id"]}
            for begun in [
                await client.post(HERE, json=a_message("initialize"), headers=BOTH)
                for _ in range(2)
            ]
        ]
        call = a_message("tools/call", name="run", arguments={"command": "x"})
        asking = asyncio.create_task(client.post(HERE, json=call, headers=first))
        async with asyncio.timeout(120):
            while not rig.driver.storage.marks:
                await asyncio.sleep(0.005)
        notice = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
        for headers in (second, BOTH):
            assert (await client.post(HERE, json=notice, headers=headers)).status_code == 202
        (before,) = list(rig.driver.storage.marks.values())
        going_on = (await client.get(f"/actions/{before.id}")).json()["state"]
        assert (await client.post(HERE, json=notice, headers=first)).status_code == 202
        answer = (await asyncio.wait_for(asking, 120)).json()
        view = (await client.get(f"/actions/{before.id}", params={"wait": 60})).json()

    assert going_on in ("granted", "running")
    assert "cancelled" in answer["error"]["message"]
    assert (view["outcome"], view["detail"]) == ("cancelled", "its client cancelled the request")
