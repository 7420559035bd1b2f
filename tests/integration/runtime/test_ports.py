"""Servers inside environments are reached through the gateway, and learn nothing of Tangram."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from domain.ids import TrajectoryKey
from domain.ports.networks import NoListener
from scheduler.runtime.node.door import ports
from scheduler.runtime.node.door.server import EmbeddedServer
from tangram_client.cli.forwarding import serve_ports
from tangram_client.context import ClientContext
from tests.integration.runtime.rig import Rig
from tests.integration.runtime.test_node_door import place

MIB = 2**20


class Inside:
    """Stands in for the network of an environment: its ports are those of this machine that it names."""

    def __init__(self) -> None:
        self.open: dict[int, int] = {}

    async def connect_port(self, trajectory: TrajectoryKey, port: int) -> int:
        if port not in self.open:
            raise NoListener(port)
        made = socket.create_connection(("127.0.0.1", self.open[port]))
        made.setblocking(False)
        return made.detach()


@pytest.fixture
async def inside(rig: Rig) -> Inside:
    found = Inside()
    ports.add_routes(rig.routes, [found])  # type: ignore[list-item]
    await place(rig)
    return found


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Answer with what arrived."""
    size, pieces = 0, 0
    while True:
        message = await receive()
        size, pieces = size + len(message.get("body", b"")), pieces + 1
        if not message.get("more_body"):
            break
    headers = [(name.decode(), value.decode()) for name, value in scope["headers"]]
    target = (scope["raw_path"] + b"?" + scope["query_string"]).decode()
    body = json.dumps([scope["method"], target, size, headers]).encode()
    answer = [(b"set-cookie", b"evil=1"), (b"location", b"/next"), (b"x-own", b"kept")]
    await send({"type": "http.response.start", "status": 418, "headers": answer})
    await send({"type": "http.response.body", "body": body[:10], "more_body": True})
    await send({"type": "http.response.body", "body": body[10:]})


@asynccontextmanager
async def http_server(behaviour: Any = application) -> AsyncIterator[int]:
    server = EmbeddedServer(uvicorn.Config(behaviour, lifespan="off", log_level="critical"))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        serving = asyncio.create_task(server.serve([listening]))
        yield listening.getsockname()[1]
        server.end()
        await serving


@asynccontextmanager
async def raw_server(answer: bytes) -> AsyncIterator[int]:
    """Send bytes to whatever connects, and close."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_a_request_passes_with_its_body_and_without_its_credentials(
    rig: Rig, inside: Inside
) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield bytes(MIB)

    async with http_server() as inside.open[8000], rig.client() as client:
        path = "/trajectories/t1/ports/8000"
        answer = await client.request(
            "PATCH",
            f"{path}/a%2Fb/?c=%C3%BC&c=2",
            content=pieces(),
            headers={"Cookie": "sessionid=1"},
        )
        root = await client.get(path)
        head = await client.head(f"{path}/x")
        options = await client.options(f"{path}/x")
    method, target, size, headers = answer.json()
    names = {name for name, _ in headers}
    assert (method, target, size) == ("PATCH", "/a%2Fb/?c=%C3%BC&c=2", 20 * MIB)
    assert not names & {"authorization", "cookie", "tangram-forward", "tangram-trajectory"}
    assert "trainer" not in answer.text
    assert dict(headers)["host"] == "localhost:8000"
    assert (answer.status_code, answer.headers["x-own"]) == (418, "kept")
    assert "set-cookie" not in answer.headers
    assert answer.headers["location"] == "/api/v1/trajectories/t1/ports/8000/next"
    assert answer.headers["content-security-policy"].startswith("sandbox")
    assert root.json()[1] == "/?"
    assert (head.status_code, head.content) == (418, b"")
    assert options.json()[0] == "OPTIONS"


async def test_a_response_arrives_while_it_is_made(rig: Rig, inside: Inside) -> None:
    first, go_on = asyncio.Event(), asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        await go_on.wait()
        await send({"type": "http.response.body", "body": b"data: 2\n\n"})

    sent: list[bytes] = []

    async def send(message: Any) -> None:
        if message.get("body"):
            sent.append(message["body"])
            first.set()

    async def receive() -> Any:
        if not receive.called:  # type: ignore[attr-defined]
            receive.called = True  # type: ignore[attr-defined]
            return {"type": "http.request", "body": b""}
        return await asyncio.Event().wait()

    receive.called = False  # type: ignore[attr-defined]
    path = "/api/v1/trajectories/t1/ports/80/events"
    scope = {
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": [(b"authorization", b"Bearer trainer")],
    }  # fmt: skip
    async with http_server(slow) as inside.open[80], rig.gateway() as gateway:
        serving = asyncio.ensure_future(gateway(scope, receive, send))
        await first.wait()
        assert sent == [b"data: 1\n\n"]
        go_on.set()
        await serving
    assert b"".join(sent) == b"data: 1\n\ndata: 2\n\n"


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"not http\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 200_000,
        b"HTTP/1.1 200\r\nContent-Length: x\r\n\r\n",
    ],
)
async def test_what_is_no_server_is_a_bad_gateway(rig: Rig, inside: Inside, answer: bytes) -> None:
    async with raw_server(answer) as inside.open[80], rig.client() as client:
        found = await client.get("/trajectories/t1/ports/80/")
    assert (found.status_code, found.json()["code"]) == (502, "bad_gateway")


async def test_refusals_name_the_cure(rig: Rig, inside: Inside) -> None:
    async with (
        rig.client() as client,
        rig.client("reader") as reader,
        rig.client("stranger") as other,
    ):
        silent = await client.get("/trajectories/t1/ports/8000/")
        wrong = await client.get("/trajectories/t1/ports/70000/")
        unknown = await client.get("/trajectories/none/ports/80/")
        forbidden = await reader.get("/trajectories/t1/ports/80/")
        foreign = await other.get("/trajectories/t1/ports/80/")
    assert (silent.status_code, silent.json()["code"]) == (502, "no_listener")
    assert "start the server there" in silent.json()["detail"]
    assert wrong.status_code == 422
    assert (unknown.status_code, forbidden.status_code, foreign.status_code) == (404, 403, 404)


@asynccontextmanager
async def address(rig: Rig) -> AsyncIterator[str]:
    """Serve a gateway with websockets; return its address."""
    async with rig.gateway() as gateway:
        server = EmbeddedServer(
            uvicorn.Config(gateway, lifespan="off", log_level="warning", ws="websockets-sansio")
        )
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            serving = asyncio.create_task(server.serve([listening]))
            yield f"ws://127.0.0.1:{listening.getsockname()[1]}/api/v1/trajectories/t1"
            server.end()
            await serving


TOKEN = {"Authorization": "Bearer trainer", "Cookie": "sessionid=1"}


async def test_a_websocket_passes_through(rig: Rig, inside: Inside) -> None:
    async def echo(server: Any) -> None:
        headers = dict(server.request.headers)
        await server.send(json.dumps([server.request.path, sorted(headers)]))
        async for message in server:
            await server.send(message)
            if message == "end":
                await server.close(1001, "enough")

    listening = await serve(echo, "127.0.0.1", 0, subprotocols=[Subprotocol("chat")])
    inside.open[80] = listening.sockets[0].getsockname()[1]
    async with listening, address(rig) as url:
        async with connect(
            f"{url}/ports/80/socket?x=1",
            additional_headers=TOKEN,
            subprotocols=[Subprotocol("chat")],
        ) as client:
            path, headers = json.loads(await client.recv())
            await client.send(b"\x00\xff")
            binary = await client.recv()
            await client.send("end")
            text = await client.recv()
            await client.wait_closed()
        with pytest.raises(InvalidStatus) as silent:
            await connect(f"{url}/ports/81/", additional_headers=TOKEN)
    assert path == "/socket?x=1"
    assert not {"authorization", "cookie", "Authorization", "Cookie"} & set(headers)
    assert (binary, text, client.subprotocol, client.close_code) == (
        b"\x00\xff",
        "end",
        "chat",
        1001,
    )
    assert silent.value.response.status_code == 502


async def test_a_tunnel_passes_bytes_and_their_end(rig: Rig, inside: Inside) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        content = await reader.read()
        writer.write(content[::-1])
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    inside.open[5432] = server.sockets[0].getsockname()[1]
    content = bytes(range(256)) * 4096
    async with server, address(rig) as url:
        async with connect(f"{url}/tunnels/5432", additional_headers=TOKEN) as client:
            for start in range(0, len(content), 65536):
                await client.send(content[start : start + 65536])
            await client.send(b"")
            received = b""
            async for message in client:
                assert isinstance(message, bytes)
                if not message:
                    break
                received += message
        with pytest.raises(InvalidStatus) as silent:
            await connect(f"{url}/tunnels/1", additional_headers=TOKEN)
    assert received == content[::-1]
    assert silent.value.response.status_code == 502


async def test_a_port_of_this_machine_leads_to_the_server(rig: Rig, inside: Inside) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        content = await reader.read()
        writer.write(content[::-1])
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    inside.open[5432] = server.sockets[0].getsockname()[1]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        local = free.getsockname()[1]
    async with server, address(rig) as url:
        context = ClientContext(
            url.replace("ws", "http", 1).partition("/api")[0], "trainer", "a test"
        )
        serving = asyncio.ensure_future(
            serve_ports(context, None, "t1", "127.0.0.1", [(5432, local)])
        )
        content = bytes(range(256)) * 2048
        answers = []
        for _ in range(2):
            reader, writer = await until_open(local)
            writer.write(content)
            writer.write_eof()
            answers.append(await reader.read())
            writer.close()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    assert answers == [content[::-1]] * 2


async def until_open(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    async with asyncio.timeout(60):
        while True:
            try:
                return await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                await asyncio.sleep(0.01)
