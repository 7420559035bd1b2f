"""`tangram door`: what reaches Tangram from a client without a token, and what does not."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import click
import httpx
import pytest
from click.testing import CliRunner

from tangram_client.cli import verbs
from tangram_client.cli.door import Forwarding, _keep_up, address_of, settings_headers
from tangram_client.cli.shell import Shell

TOKEN = "tgm_secret"


def forwarding(url: str = "http://tangram:8000/base", **headers: str) -> Forwarding:
    return Forwarding(url, "/sandboxfusion", TOKEN, headers)


def head(*lines: str, through: Forwarding | None = None) -> list[str]:
    raw = "\r\n".join([*lines, "", ""]).encode()
    return (through or forwarding()).head(raw).decode().split("\r\n")


def test_a_request_gets_the_path_and_the_token_of_the_door():
    first, *rest = head("POST /run_code?x=1 HTTP/1.1", "Host: localhost", "Content-Length: 3")

    assert first == "POST /base/sandboxfusion/run_code?x=1 HTTP/1.1"
    assert "Host: tangram:8000" in rest
    assert f"Authorization: Bearer {TOKEN}" in rest
    assert "Content-Length: 3" in rest
    assert "Connection: close" in rest


def test_credentials_and_settings_of_the_client_are_not_forwarded():
    lines = (
        "Authorization: Bearer other", "X-API-Key: other", "X-Polar-Control-Token: other", "Cookie: other", "X-Tangram-Task: other",
        "Connection: keep-alive",
    )  # fmt: skip
    text = "\n".join(
        head("GET / HTTP/1.1", *lines, through=forwarding(**{"X-Tangram-Task": "own"}))
    )

    assert "other" not in text
    assert "keep-alive" not in text
    assert "X-Tangram-Task: own" in text


@pytest.mark.parametrize(
    "target",
    ["/../api/v1/tokens", "/a/%2e%2e/b", "/./x", "/a\\..\\b", "http://tangram/api", "*", ""],
)
def test_a_request_that_could_leave_the_door_is_refused(target: str):
    with pytest.raises(ValueError, match=r"not forwarded|no request"):
        head(f"GET {target} HTTP/1.1")


@pytest.mark.parametrize("line", ["no colon", ": empty", " folded: x", "spaced : x"])
def test_a_malformed_header_is_refused(line: str):
    with pytest.raises(ValueError, match="malformed"):
        head("GET / HTTP/1.1", line)


@pytest.mark.parametrize("text", ["8080", "localhost:8080", "127.0.0.1:x", "127.0.0.1:70000", ""])
def test_an_address_that_is_none_is_a_usage_error(text: str):
    with pytest.raises(click.BadParameter):
        address_of(text)


def test_addresses_are_of_ip_version_4_and_6():
    assert address_of("127.0.0.1:0") == ("127.0.0.1", 0)
    assert address_of("[::1]:8080") == ("::1", 8080)


def test_the_settings_of_actions_are_headers():
    assert settings_headers("t", "1,2", "python:3.12", None) == {
        "X-Tangram-Task": "t",
        "X-Tangram-Cpu": "1,2",
        "X-Tangram-Environment": '{"image": "python:3.12"}',
    }
    assert settings_headers(None, None, None, None) == {}


def a_pool(**given: Any) -> dict[str, Any]:
    return {"name": "default", "host_network": False, "sandbox": "required", **given}


def invoked(pool: dict[str, Any], *arguments: str) -> tuple[Any, list[httpx.Request]]:
    """Run the command against a server with one pool, on an address that is taken."""
    asked: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        if request.url.path.endswith("/pools"):
            return httpx.Response(200, json={"results": [pool], "next": None})
        if request.method == "DELETE":
            return httpx.Response(204)
        return httpx.Response(201, json={"id": "tok_1", "token": TOKEN, "expires_at": None})

    shell = Shell(transport=httpx.MockTransport(handle))
    env = {"TANGRAM_URL": "http://tangram", "TANGRAM_TOKEN": "tgm_admin", "NO_COLOR": "1"}
    return CliRunner(env=env).invoke(verbs, ["door", *arguments], obj=shell), asked


@pytest.mark.parametrize(
    ("pool", "cure"),
    [(a_pool(host_network=True), "host_network: false"), (a_pool(sandbox="off"), "sandbox: required")],
)  # fmt: skip
def test_a_pool_whose_commands_could_use_it_refuses_the_door(pool: dict[str, Any], cure: str):
    result, asked = invoked(pool, "sandboxfusion", "--project", "p")

    assert result.exit_code == 1
    assert cure in result.output
    assert [request.method for request in asked] == ["GET"]


def test_a_project_is_needed():
    result, asked = invoked(a_pool(), "sandboxfusion")

    assert result.exit_code == 2
    assert "--project" in result.output
    assert asked == []


def test_the_token_is_narrow_and_revoked_when_the_door_cannot_listen():
    result, asked = invoked(
        a_pool(), "sandboxfusion", "--project", "p", "--listen", "203.0.113.7:1"
    )

    assert result.exit_code == 1
    created = json.loads(next(each.content for each in asked if each.method == "POST"))
    assert (created["project"], created["scopes"]) == ("p", ["read", "submit"])
    assert created["expires_at"] is not None
    assert [(each.method, each.url.path) for each in asked][-1] == (
        "DELETE",
        "/api/v1/tokens/tok_1",
    )


async def test_a_pool_that_is_opened_later_ends_the_service_until_it_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pools = [a_pool()]

    def handle(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"results": pools, "next": None})

    monkeypatch.setenv("TANGRAM_URL", "http://tangram")
    monkeypatch.setenv("TANGRAM_TOKEN", "tgm_admin")
    monkeypatch.setitem(_keep_up.__globals__, "CHECK_SECONDS", 0.001)
    held = forwarding()
    shell = Shell(transport=httpx.MockTransport(handle))
    upkeep = asyncio.ensure_future(_keep_up(shell, held, "tok_1"))
    async with asyncio.timeout(60):
        for pool, refused in ((a_pool(host_network=True), True), (a_pool(), False)):
            pools[:] = [pool]
            while bool(held.refused) != refused:
                await asyncio.sleep(0.001)
    upkeep.cancel()


@asynccontextmanager
async def serving(door: Forwarding) -> AsyncIterator[tuple[str, int]]:
    server = await asyncio.start_server(door.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    try:
        yield host, port
    finally:
        server.close()
        await door.close()


async def test_bodies_pass_in_both_directions_and_a_client_that_goes_ends_its_request():
    gone = asyncio.Event()

    async def tangram(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(200_000)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + body[::-1])
        await writer.drain()
        if not await reader.read():
            gone.set()
        writer.close()

    upstream = await asyncio.start_server(tangram, "127.0.0.1", 0)
    port = upstream.sockets[0].getsockname()[1]
    async with serving(forwarding(f"http://127.0.0.1:{port}")) as address:
        reader, writer = await asyncio.open_connection(*address)
        sent = bytes(range(250)) * 800
        writer.write(b"POST /run_code HTTP/1.1\r\nContent-Length: 200000\r\n\r\n" + sent)
        answer = await reader.readexactly(len(b"HTTP/1.1 200 OK\r\n\r\n") + len(sent))
        assert answer.endswith(sent[::-1])
        assert not gone.is_set()
        writer.close()
        await asyncio.wait_for(gone.wait(), 60)
    upstream.close()


async def said(door: Forwarding, request: bytes) -> tuple[int, dict[str, Any]]:
    async with serving(door) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(request)
        writer.write_eof()
        answer = await reader.read()
        writer.close()
    first, _, body = answer.partition(b"\r\n\r\n")
    return int(first.split()[1]), json.loads(body)


async def test_a_tangram_that_is_out_of_reach_is_504_since_nothing_has_begun():
    status, body = await said(forwarding("http://127.0.0.1:1"), b"GET /v1/ping HTTP/1.1\r\n\r\n")

    assert status == 504
    assert "cannot be reached" in body["detail"]


async def test_a_door_that_is_refused_answers_with_the_reason():
    door = forwarding("http://127.0.0.1:1")
    door.refused = "pool 'default' allows network: host"

    assert await said(door, b"GET / HTTP/1.1\r\n\r\n") == (403, {"detail": door.refused})


async def test_a_request_without_end_or_meaning_is_refused():
    status, _ = await said(forwarding(), b"hello\r\n\r\n")
    assert status == 400
    status, _ = await said(forwarding(), b"GET / HTTP/1.1\r\nX: " + b"x" * 200_000)
    assert status == 431


def test_the_door_of_prorl_may_add_servers_and_ends_its_session():
    result, asked = invoked(
        a_pool(), "prorl", "--task", "T", "--token-ids", "full", "--listen", "203.0.113.7:1"
    )

    assert result.exit_code == 1  # it cannot listen there
    posts = [request for request in asked if request.method == "POST"]
    created = json.loads(posts[0].content)
    assert (created["project"], created["scopes"]) == ("default", ["read", "submit", "operate"])
    assert posts[1].url.path == "/prorl/stop"
    assert posts[1].headers["X-Tangram-Task"] == "T"
    assert posts[1].headers["X-Tangram-Token-Ids"] == "full"
    assert posts[1].headers["Authorization"] == f"Bearer {TOKEN}"


async def test_a_patient_door_waits_for_a_web_process_that_restarts(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(sys.modules[Forwarding.__module__], "_TRY_SECONDS", 0.0)
    tries: list[str] = []

    async def connect(host: str, port: int, **_: Any) -> Any:
        tries.append(host)
        if len(tries) < 3:
            raise ConnectionRefusedError
        return "reader", "writer"

    monkeypatch.setattr(asyncio, "open_connection", connect)
    patient = Forwarding("http://tangram:8000", "/prorl", TOKEN, {}, patience_seconds=60.0)

    found: Any = await patient._connected()
    assert found == ("reader", "writer")
    assert len(tries) == 3
    tries.clear()
    with pytest.raises(ConnectionRefusedError):
        await forwarding()._connected()
    assert len(tries) == 1
