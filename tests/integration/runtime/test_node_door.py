"""The door of a node: web processes reach its worker directly, and only they."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace

from contract.door_address import DoorAddress
from domain.errors import (
    CapacityError,
    Conflict,
    Gone,
    InvalidRequest,
    NotFound,
    StorageFull,
    TangramError,
    Unavailable,
)
from domain.ids import TrajectoryKey
from managers.cpu.fake import Play
from scheduler.runtime.gateway.http import HttpError, HttpRequest, problem_of
from scheduler.runtime.node.door import server
from scheduler.runtime.node.door.routes import (
    DoorError,
    DoorRequest,
    DoorResponse,
    DoorRoutes,
    NotHere,
)
from scheduler.runtime.node.door.server import DoorOptions, NodeDoor
from scheduler.runtime.redis.clients import connect_async
from scheduler.runtime.redis.door_addresses import DoorAddresses
from tests.integration.runtime.rig import Rig

MIB = 1024 * 1024


async def nothing() -> dict[str, str]:
    """What a request without a body receives."""
    return {"type": "http.disconnect"}


async def place(rig: Rig, name: str = "t1") -> None:
    """Give a trajectory an environment by its first action."""
    rig.driver.script = lambda _: Play()
    async with rig.client() as client:
        action = {
            "task": "t",
            "trajectory": name,
            "kind": "exec",
            "cost": {"cpu": 1},
            "exec": {"command": ["true"]},
        }
        response = await client.post("/actions?wait=60", json=action)
    assert response.json()["outcome"] == "completed"


async def stored_address(rig: Rig) -> DoorAddress:
    client = connect_async(rig.url)
    address = await DoorAddresses(client, rig.keys).read("n1")
    await client.aclose()
    assert address is not None
    return address


async def test_a_request_reaches_the_node_of_the_trajectory(rig: Rig) -> None:
    async def show(request: DoorRequest) -> DoorResponse:
        text = f"{request.trajectory} {request.parameters['path']} {request.query['x']}"
        return DoorResponse(201, text.encode(), {"X-Kind": "text"})

    rig.routes.add("GET", "/show/{path}", show)
    await place(rig)
    async with (
        rig.context() as context,
        context.node_door.request(
            "default", "t1", "GET", "/show/a b/ü%2F", query={"x": "1&2"}
        ) as answer,
    ):
        body = await answer.body()
        asked = await context.node_door.ask("default", "t1", "/show/a b/ü%2F", {"x": "1&2"})
    assert (answer.status, answer.headers["x-kind"]) == (201, "text")
    assert body.decode() == asked.decode() == "default/t1 a b/ü%2F 1&2"


async def test_a_body_is_read_no_faster_than_the_handler_takes_it(rig: Rig) -> None:
    sent = 0
    read_first, go_on = asyncio.Event(), asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(256):
            sent += 1
            yield bytes(MIB // 4)

    async def slow(request: DoorRequest) -> DoorResponse:
        size = 0
        async for piece in request.chunks():
            size += len(piece)
            read_first.set()
            await go_on.wait()
        return DoorResponse(200, str(size).encode())

    async def upload() -> bytes:
        async with context.node_door.request("default", "t1", "PUT", "/slow", body=pieces()) as a:
            return await a.body()

    rig.routes.add("PUT", "/slow", slow)
    await place(rig)
    async with rig.context() as context:
        uploading = asyncio.create_task(upload())
        await read_first.wait()
        before = -1
        while before != sent:  # until the connection is full
            before = sent
            for _ in range(100):
                await asyncio.sleep(0)
        assert sent < 64
        go_on.set()
        assert int(await uploading) == 64 * MIB


async def test_a_client_that_leaves_cancels_the_handler(rig: Rig) -> None:
    ended = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        try:
            yield b"first"
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def follow(_: DoorRequest) -> DoorResponse:
        return DoorResponse(200, endless())

    rig.routes.add("GET", "/follow", follow)
    await place(rig)
    async with rig.context() as context:
        async with context.node_door.request("default", "t1", "GET", "/follow") as answer:
            assert await anext(answer.chunks()) == b"first"
        await asyncio.wait_for(ended.wait(), 60)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (NotFound("no file"), 404, "not_found"),
        (Conflict("busy", pointer="/size"), 409, "conflict"),
        (Gone("ended"), 410, "gone"),
        (InvalidRequest("bad", pointer="/path"), 422, "invalid"),
        (CapacityError("full", retry_after_seconds=7), 429, "unavailable"),
        (StorageFull("no disk"), 507, "disk_full"),
        (DoorError(502, "no_listener", "nothing listens"), 502, "no_listener"),
        (ZeroDivisionError("private"), 500, "internal"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_a_refusal_of_the_node_is_the_refusal_of_the_api(
    rig: Rig, error: Exception, status: int, code: str
) -> None:
    async def refuse(_: DoorRequest) -> DoorResponse:
        raise error

    rig.routes.add("GET", "/refuse", refuse)
    await place(rig)
    async with rig.context() as context:
        with pytest.raises(TangramError) as raised:
            async with context.node_door.request("default", "t1", "GET", "/refuse"):
                pass
        with pytest.raises(type(raised.value), match=f"^{re.escape(str(raised.value))}$"):
            await context.node_door.ask("default", "t1", "/refuse", {})
    found = raised.value
    assert type(found) is (type(error) if status < 500 or status == 507 else HttpError)
    problem = problem_of(found, HttpRequest({"type": "http", "path": "/", "headers": []}, nothing))
    assert (problem.status, json.loads(problem.content)["code"]) == (status, code)
    assert ("private" in str(found)) is False
    if isinstance(error, InvalidRequest):
        assert isinstance(found, InvalidRequest)
        assert found.pointer == error.pointer
    if isinstance(error, CapacityError):
        assert problem.headers["Retry-After"] == "7"


async def test_a_body_that_breaks_off_is_not_complete(rig: Rig) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"part"
        raise OSError("the disk is gone")

    async def breaking(_: DoorRequest) -> DoorResponse:
        return DoorResponse(200, pieces())

    rig.routes.add("GET", "/breaking", breaking)
    await place(rig)
    async with (
        rig.context() as context,
        context.node_door.request("default", "t1", "GET", "/breaking") as answer,
    ):
        with pytest.raises(Unavailable, match="node n1 broke off"):
            await answer.body()


async def test_after_a_restart_the_new_secret_is_found(rig: Rig) -> None:
    async def hello(_: DoorRequest) -> DoorResponse:
        return DoorResponse(200, b"hello")

    rig.routes.add("GET", "/hello", hello)
    await place(rig)
    async with rig.context() as context:
        for _ in range(2):
            async with context.node_door.request("default", "t1", "GET", "/hello") as answer:
                assert await answer.body() == b"hello"
            for _ in range(2):
                assert await context.node_door.ask("default", "t1", "/hello", {}) == b"hello"
            before = await stored_address(rig)
            await rig.stop_node()
            await rig.start_node()
    assert (await stored_address(rig)).secret != before.secret


async def test_an_ended_worker_leaves_neither_address_nor_socket(rig: Rig) -> None:
    address = await stored_address(rig)
    path = Path(address.socket_path or "")
    assert path.is_socket()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    await place(rig)
    await rig.stop_node()
    assert not path.exists()
    async with rig.context() as context:
        with pytest.raises(Unavailable, match="node n1 has no worker"):
            async with context.node_door.request("default", "t1", "GET", "/any"):
                pass


async def test_a_dead_worker_is_named_with_the_cure(rig: Rig) -> None:
    await place(rig)
    address = await stored_address(rig)
    await rig.stop_node()
    client = connect_async(rig.url)
    await DoorAddresses(client, rig.keys).publish("n1", address)  # as kill -9 leaves it
    await client.aclose()
    async with rig.context() as context:
        with pytest.raises(Unavailable, match="TANGRAM_NODE_DOOR="):
            async with context.node_door.request("default", "t1", "GET", "/any"):
                pass


async def test_without_the_secret_nothing_is_served(rig: Rig) -> None:
    address = await stored_address(rig)
    transport = httpx.AsyncHTTPTransport(uds=address.socket_path)
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
        for headers in ({}, {"Authorization": "Bearer guess"}):
            response = await client.get("/hello", headers=headers)
            assert (response.status_code, response.headers["tangram-problem"]) == (
                401,
                "unauthorized",
            )


async def test_an_environment_that_moved_is_looked_for_once(rig: Rig) -> None:
    async def nowhere(request: DoorRequest) -> DoorResponse:
        tries.append(request.trajectory)
        raise NotHere(request.trajectory)

    tries: list[TrajectoryKey] = []
    rig.routes.add("GET", "/elsewhere", nowhere)
    await place(rig)
    async with rig.context() as context:
        with pytest.raises(NotFound, match="no environment on node n1") as raised:
            async with context.node_door.request("default", "t1", "GET", "/elsewhere"):
                pass
    assert (raised.value.code, len(tries)) == ("no_environment", 2)


async def test_a_trajectory_without_an_environment_is_named(rig: Rig) -> None:
    async with rig.client() as client, rig.context() as context:
        await client.post("/trajectories", json={"task": "t", "id": "early"})
        with pytest.raises(Conflict, match="no environment yet") as raised:
            async with context.node_door.request("default", "early", "GET", "/elsewhere"):
                pass
        assert raised.value.code == "no_environment"
        with pytest.raises(NotFound):
            async with context.node_door.request("default", "never", "GET", "/elsewhere"):
                pass
        await client.post("/trajectories/early/finish")


async def test_one_project_cannot_take_all_connections(rig: Rig) -> None:
    async def hello(_: DoorRequest) -> DoorResponse:
        return DoorResponse(200, b"hello")

    rig.routes.add("GET", "/hello", hello)
    rig.node_requests = 2
    await place(rig)
    async with rig.context() as context:
        door = context.node_door

        async def again(project: str) -> bytes:
            async with door.on_node(project, "n1", "GET", "/hello") as answer:
                return await answer.body()

        async with (
            door.on_node("default", "n1", "GET", "/hello"),
            door.on_node("default", "n1", "GET", "/hello"),
        ):
            with pytest.raises(CapacityError, match="2 requests"):
                await again("default")
            assert await again("other") == b"hello"
        assert await again("default") == b"hello"


async def test_a_node_on_another_machine_is_reached_by_its_port(rig: Rig) -> None:
    async def upload(request: DoorRequest) -> DoorResponse:
        return DoorResponse(200, (await request.body(100))[::-1])

    routes = DoorRoutes()
    routes.add("*", "/upload", upload)
    await place(rig)
    client = connect_async(rig.url)
    options = DoorOptions.parse({"door": "127.0.0.1:0", "door_address": ""}, rig.directory)
    door = NodeDoor(DoorAddresses(client, rig.keys), "n1", options, routes)
    await rig.stop_node()
    await door.open(99)
    assert door.address is not None
    port = door.address.address.rpartition(":")[2]
    # The name of this host need not lead to its loopback.
    door.address = replace(door.address, address=f"127.0.0.1:{port}")
    await door.publish()
    async with rig.context() as context:
        async with context.node_door.request("default", "t1", "POST", "/upload", body=b"abc") as a:
            assert await a.body() == b"cba"
        assert await context.node_door.ask("default", "t1", "/upload", {}) == b""
        await door.close()
        await client.aclose()
        with pytest.raises(Unavailable, match=f"cannot be reached at 127.0.0.1:{port}|no worker"):
            async with context.node_door.request("default", "t1", "POST", "/upload", body=b"abc"):
                pass


@pytest.mark.parametrize("setting", ["door", "door_address"])
def test_an_address_without_a_port_is_refused(setting: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="host:port"):
        DoorOptions.parse({setting: "node-1"}, tmp_path)


async def test_a_node_that_hangs_is_an_error_after_the_silence(rig: Rig) -> None:
    async def hang(_: DoorRequest) -> DoorResponse:
        await asyncio.Event().wait()
        return DoorResponse()

    rig.routes.add("*", "/hang", hang)
    await place(rig)
    async with rig.context() as context:
        with pytest.raises(Unavailable, match="n1 does not answer"):
            await context.node_door.ask("default", "t1", "/hang", {}, idle_seconds=0.2)
        with pytest.raises(Unavailable, match="whether it was done is unknown"):
            async with context.node_door.request(
                "default", "t1", "POST", "/hang", idle_seconds=0.2
            ):
                pass


async def test_a_long_path_of_the_data_folder_harms_nothing(rig: Rig) -> None:
    client = connect_async(rig.url)
    options = DoorOptions(rig.directory / ("long" * 30))
    door = NodeDoor(DoorAddresses(client, rig.keys), "n9", options, DoorRoutes())
    await door.open(1)
    assert door.address is not None
    path = Path(door.address.socket_path or "")
    assert path.is_socket()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    await door.close()
    assert not path.parent.exists()
    await client.aclose()


@pytest.mark.parametrize("advertised", ["10.0.0.7:0", "10.0.0.7:7411", ""])
async def test_a_free_port_is_advertised_at_the_given_address(rig: Rig, advertised: str) -> None:
    client = connect_async(rig.url)
    options = DoorOptions(rig.directory / "door", "127.0.0.1:0", advertised)
    door = NodeDoor(DoorAddresses(client, rig.keys), "n9", options, DoorRoutes())
    await door.open(1)
    assert door.address is not None
    host, _, port = door.address.address.rpartition(":")
    assert host == (advertised.rpartition(":")[0] or socket.gethostname())
    assert port == "7411" or int(port) > 1023
    await door.close()
    await client.aclose()


async def test_a_node_with_too_many_connections_is_an_error_of_ours(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await place(rig)
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 1)
    await rig.stop_node()
    await rig.start_node()
    async with rig.context() as context:
        with pytest.raises(Unavailable, match="too many connections"):
            await context.node_door.ask("default", "t1", "/any", {})
        with pytest.raises(Unavailable, match="too many connections"):
            async with context.node_door.request("default", "t1", "GET", "/any"):
                pass
