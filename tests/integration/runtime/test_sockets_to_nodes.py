"""Websockets from a client through a web process to a node."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import uvicorn
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from contract.routes import WEBSOCKET, Binary, Route
from domain.errors import Conflict
from domain.principals import Principal, Scope
from scheduler.runtime.asgi_socket import AsgiSocket
from scheduler.runtime.gateway.http import HttpRequest
from scheduler.runtime.gateway.relaying import bridge
from scheduler.runtime.node.door.routes import DoorRequest
from scheduler.runtime.node.door.server import EmbeddedServer
from tests.integration.runtime.rig import Rig
from tests.integration.runtime.test_node_door import place

ROUTE = Route(
    method=WEBSOCKET,
    path="/api/v1/trajectories/{id}/attach",
    operation="attach",
    summary="",
    scope=Scope.SUBMIT,
    responses={101: Binary("*/*", "")},
)


@asynccontextmanager
async def web_server(rig: Rig) -> AsyncIterator[str]:
    """Serve a gateway with one websocket route; return its address."""
    async with rig.gateway() as gateway:
        door = gateway._context.node_door

        async def attach(
            _: HttpRequest, principal: Principal, name: str, client: AsgiSocket
        ) -> None:
            async with door.websocket(
                principal.project or "", name, "/attach", subprotocols=["tangram"]
            ) as node:
                await bridge(client, node)

        gateway._table.add([ROUTE], {"attach": attach})
        server = EmbeddedServer(
            uvicorn.Config(gateway, lifespan="off", log_level="warning", ws="websockets-sansio")
        )
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            serving = asyncio.create_task(server.serve([listening]))
            yield f"ws://127.0.0.1:{listening.getsockname()[1]}/api/v1/trajectories"
            server.end()
            await serving


def attached(address: str, name: str = "t1", token: str = "trainer") -> connect:
    return connect(
        f"{address}/{name}/attach",
        additional_headers={"Authorization": f"Bearer {token}"},
        subprotocols=[Subprotocol("tangram")],
        proxy=None,
    )


async def closed(client: ClientConnection) -> ConnectionClosed:
    with pytest.raises(ConnectionClosed) as error:
        await client.recv()
    return error.value


async def test_messages_pass_in_both_directions(rig: Rig) -> None:
    async def echo(request: DoorRequest, socket: AsgiSocket) -> None:
        await socket.accept("tangram")
        await socket.send(str(request.trajectory))
        while (message := await socket.receive()) is not None:
            await socket.send(message[::-1])

    rig.routes.add_socket("/attach", echo)
    await place(rig)
    async with web_server(rig) as address, attached(address) as client:
        assert client.subprotocol == "tangram"
        assert await client.recv() == "default/t1"
        for message, reply in (("abc", "cba"), (b"\x00\xff", b"\xff\x00")):
            await client.send(message)
            assert await client.recv() == reply


async def test_a_client_that_leaves_ends_the_handler(rig: Rig) -> None:
    left: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    async def wait(_: DoorRequest, socket: AsgiSocket) -> None:
        await socket.accept()
        assert await socket.receive() is None
        left.set_result(socket.close_code)

    rig.routes.add_socket("/attach", wait)
    await place(rig)
    async with web_server(rig) as address:
        async with attached(address) as client:
            await client.close(4001)
        assert await asyncio.wait_for(left, 60) == 4001


async def test_the_code_of_the_node_reaches_the_client(rig: Rig) -> None:
    async def end(_: DoorRequest, socket: AsgiSocket) -> None:
        await socket.accept()
        await socket.close(4100, "the shell ended")

    rig.routes.add_socket("/attach", end)
    await place(rig)
    async with web_server(rig) as address, attached(address) as client:
        error = await closed(client)
    assert error.rcvd is not None
    assert (error.rcvd.code, error.rcvd.reason) == (4100, "the shell ended")


async def test_a_handler_that_fails_closes_with_the_reason(rig: Rig) -> None:
    async def fail(_: DoorRequest, socket: AsgiSocket) -> None:
        await socket.accept()
        raise Conflict("taken by another client")

    rig.routes.add_socket("/attach", fail)
    await place(rig)
    async with web_server(rig) as address, attached(address) as client:
        error = await closed(client)
    assert error.rcvd is not None
    assert (error.rcvd.code, error.rcvd.reason) == (1011, "taken by another client")


async def refusal(address: str, **options: Any) -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as error:
        async with attached(address, **options):
            pass
    problem = msgspec.json.decode(error.value.response.body or b"")
    assert problem["request_id"]
    return error.value.response.status_code, problem["code"]


async def test_refusals_are_the_problems_of_the_api(rig: Rig) -> None:
    async def refuse(_request: DoorRequest, _socket: AsgiSocket) -> None:
        raise Conflict("a command runs", code="busy")

    rig.routes.add_socket("/attach", refuse)
    await place(rig)
    async with web_server(rig) as address:
        assert await refusal(address) == (409, "busy")
        assert await refusal(address, name="never") == (404, "not_found")
        assert await refusal(address, token="reader") == (403, "missing_scope")
        assert await refusal(address, token="unknown") == (401, "unauthorized")
        await rig.stop_node()
        assert (await refusal(address))[0] == 503


async def test_a_flood_waits_for_the_client_to_read(rig: Rig) -> None:
    sent, noise = 0, os.urandom(32_768)  # it cannot be compressed

    async def flood(_: DoorRequest, socket: AsgiSocket) -> None:
        nonlocal sent
        await socket.accept()
        for _number in range(2000):
            await socket.send(noise)
            sent += 1

    rig.routes.add_socket("/attach", flood)
    await place(rig)
    async with web_server(rig) as address, attached(address) as client:
        await client.recv()
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.05)
        assert sent < 1000
        received = 1
        while received < 2000:
            await client.recv()
            received += 1
