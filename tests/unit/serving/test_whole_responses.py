"""A complete response leaves in one write, and the messages of ASGI do what it does not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState

from contract.requests import EXCHANGE
from scheduler.runtime.gateway.http import HttpRequest, HttpResponse
from tangram_web.serving.protocol import LimitedHttp

Message = MutableMapping[str, Any]
REQUEST = b"POST /a%20b?wait=30 HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello"


class Wire(asyncio.Transport):
    """A transport that keeps its writes."""

    def __init__(self) -> None:
        super().__init__({"peername": ("10.0.0.1", 5), "sockname": ("127.0.0.1", 80)})
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def get_write_buffer_size(self) -> int:
        return 0


async def answered(
    request: bytes, response: HttpResponse, *, read: bool = True, **scope: Any
) -> tuple[Wire, Message]:
    """Send a request, let the gateway's classes answer it, and return what was written and the scope."""
    seen: list[Message] = []

    async def application(
        asked: Message, receive: Callable[[], Awaitable[Message]], send: Any
    ) -> None:
        seen.append(asked)
        asked.update(scope)
        each = HttpRequest(asked, receive)
        if read:
            assert await each.body() == b"hello"
        await response.answer(each, send)

    config = Config(application, log_level="critical", access_log=False, lifespan="off")
    config.load()
    protocol, wire = LimitedHttp(config, ServerState(), {}), Wire()
    protocol.connection_made(wire)
    protocol.data_received(request)
    while protocol.tasks:
        await asyncio.gather(*protocol.tasks)
    protocol.connection_lost(None)
    return wire, seen[0]


async def test_a_response_is_one_write_with_the_headers_of_both():
    wire, scope = await answered(REQUEST, HttpResponse(200, {"a": 1}, headers={"Location": "/x"}))

    (whole,) = wire.writes
    head, body = whole.split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"location: /x" in head
    assert b"content-length: 7" in head
    assert body == b'{"a":1}'
    assert (scope["path"], scope["raw_path"], scope["query_string"]) == (
        "/a b", b"/a%20b", b"wait=30",
    )  # fmt: skip
    assert scope[EXCHANGE].status == 200


@pytest.mark.parametrize(
    "request_line", [b"HEAD / HTTP/1.1", b"GET / HTTP/1.0", b"GET / HTTP/1.1\r\nConnection: close"]
)
async def test_uncommon_requests_are_answered_by_messages(request_line):
    wire, scope = await answered(
        request_line + b"\r\nHost: h\r\n\r\n", HttpResponse(200, raw=b"hello"), read=False
    )

    whole = b"".join(wire.writes)
    assert whole.startswith(b"HTTP/1.1 200 OK\r\n")
    assert whole.endswith(b"" if request_line.startswith(b"HEAD") else b"hello")
    assert scope[EXCHANGE].status == 200


async def test_no_header_ends_its_line_early():
    response = HttpResponse(200, raw=b"", headers={"Location": "/x\r\nset-cookie: a"})

    wire, _ = await answered(REQUEST, response)

    assert wire.writes == []
    assert wire.closed


async def test_a_body_in_pieces_is_read_whole():
    async def application(asked: Message, receive: Any, send: Any) -> None:
        bodies.append(await HttpRequest(asked, receive).body())
        await HttpResponse(200).answer(HttpRequest(asked, receive), send)

    bodies: list[bytes] = []
    config = Config(application, log_level="critical", access_log=False, lifespan="off")
    config.load()
    protocol, wire = LimitedHttp(config, ServerState(), {}), Wire()
    protocol.connection_made(wire)
    protocol.data_received(REQUEST[:-3])
    await asyncio.sleep(0)
    protocol.data_received(REQUEST[-3:])
    await asyncio.gather(*protocol.tasks)
    protocol.connection_lost(None)

    assert bodies == [b"hello"]
    assert len(wire.writes) == 1
