"""A client of any door that hangs up while its command runs: the command is cancelled, unless the protocol keeps it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import httpx
import pytest

from domain.ports import RunOrder
from facades.e2b.connect import frame
from facades.registry import BUILT_IN
from managers.cpu.fake import Play
from tests.integration.runtime.rig import Rig
from tests.integration.runtime.test_doors_refuse import nothing_runs, shown, stock


class Command(NamedTuple):
    """A request that runs a command, as a door's client sends it."""

    path: str
    body: bytes
    headers: dict[str, str] = {}
    #: The protocol lets the command go on without its client.
    goes_on: bool = False


async def of_swerex(client: httpx.AsyncClient) -> Command:
    return Command("/swerex/t1/execute", b'{"command": ["x"]}')


async def of_rock(client: httpx.AsyncClient) -> Command:
    root = "/apis/envs/sandbox/v1"
    made = await client.post(f"{root}/start_async", json={"image": "python:3.11"})
    name = made.json()["result"]["sandbox_id"]
    body = {"sandbox_id": name, "command": ["x"]}
    return Command(f"{root}/execute", json.dumps(body).encode())


async def of_mcp(client: httpx.AsyncClient) -> Command:
    params = {"name": "run", "arguments": {"command": "x"}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return Command("/trajectories/t1/mcp", json.dumps(message).encode())


async def of_sandboxfusion(client: httpx.AsyncClient) -> Command:
    return Command("/sandboxfusion/run_code", b'{"code": "x", "language": "bash"}')


async def of_e2b(client: httpx.AsyncClient) -> Command:
    sandbox = (await client.post("/e2b/v2/sandboxes", json={"templateID": "base"})).json()
    headers = {
        "content-type": "application/connect+json",
        "e2b-sandbox-id": sandbox["sandboxID"],
        "x-access-token": sandbox["envdAccessToken"],
    }
    start = {"process": {"cmd": "x"}, "stdin": False}
    return Command("/e2b/process.Process/Start", frame(start), headers, goes_on=True)


Prepare = Callable[[httpx.AsyncClient], Awaitable[Command]]
COMMANDS: dict[str, Prepare] = {
    "swerex": of_swerex,
    "rock": of_rock,
    "mcp": of_mcp,
    "sandboxfusion": of_sandboxfusion,
    "e2b": of_e2b,
}
#: Their commands run in sessions, on GPU services, and in rollouts; each has this test in a module of its own.
ELSEWHERE = {"verltool", "openai", "polar", "prorl"}


def test_every_door_is_tested() -> None:
    assert {entry.door for entry in BUILT_IN} == set(COMMANDS) | ELSEWHERE


@pytest.mark.parametrize("door", COMMANDS)
async def test_a_client_that_hangs_up_cancels_its_command(
    rig: Rig, door: str, caplog: pytest.LogCaptureFixture
) -> None:
    begun: asyncio.Future[RunOrder] = asyncio.get_running_loop().create_future()

    def play(order: RunOrder) -> Play:
        if not begun.done():
            begun.set_result(order)
        return Play(seconds=None)

    rig.driver.script = play
    caplog.set_level(logging.INFO)
    async with stock(rig) as client:
        command = await COMMANDS[door](client)
        transport = client._transport
        assert isinstance(transport, httpx.ASGITransport)
        unread = [{"type": "http.request", "body": command.body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if unread:
                return unread.pop()
            await rig.until_started((await begun).id)
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            assert message.get("status", 200) == 200, message

        headers = {"content-type": "application/json", **shown("trainer"), **command.headers}
        scope = {
            "type": "http", "method": "POST", "path": command.path, "query_string": b"",
            "headers": [(name.lower().encode(), text.encode()) for name, text in headers.items()],
        }  # fmt: skip
        caplog.clear()
        await asyncio.wait_for(transport.app(scope, receive, send), 120)
        order = await begun
        logged = [each for each in caplog.messages if each.startswith(f"door {door}: ")]
        state = (await client.get(f"/api/v1/actions/{order.id}")).json()["state"]
        if command.goes_on:
            assert state in {
                "granted",
                "running",
            }  # its start may be reported some milliseconds later
            await rig.end_action(order.id)
        else:
            ended = (await client.get(f"/api/v1/actions/{order.id}?wait=60", timeout=120)).json()
            assert (ended["outcome"], ended["detail"]) == ("cancelled", "its client disconnected")
    await nothing_runs(rig)
    assert len(logged) == 1, logged
    assert "disconnected" in logged[0]
