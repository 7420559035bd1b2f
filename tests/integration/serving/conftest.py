"""A real web server with small limits, in the test's own event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn

from tangram_web.serving.limits import WebLimits
from tangram_web.serving.protocol import LimitedHttp
from tangram_web.serving.requests import LimitedRequests

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

SMALL = WebLimits(
    header_bytes=4096,
    header_count=16,
    header_seconds=1.0,
    body_bytes=100_000,
    bodies_bytes=150_000,
    body_bytes_per_second=1000,
    body_grace_seconds=1.0,
    write_seconds=1.0,
    websocket_bytes=1000,
)


@dataclass
class Site:
    """A running server and what its application received."""

    port: int = 0
    server: uvicorn.Server | None = None
    bodies: list[int] = field(default_factory=list)
    gone: int = 0
    messages: list[str] = field(default_factory=list)
    #: Ends the pause of ``/stream`` between head and body.
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Read the body and answer with its size; ``/large`` answers with 20 MB, ``/hold`` never."""
        if scope["type"] == "websocket":
            await self._websocket(receive, send)
            return
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.gone += 1
                return
            size += len(message["body"])
            if not message.get("more_body"):
                break
        self.bodies.append(size)
        if scope["path"] == "/hold":
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        if scope["path"] == "/stream":
            await self._stream(send)
            return
        body = b"x" * 20_000_000 if scope["path"] == "/large" else b"%d" % size
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _stream(self, send: Send) -> None:
        """Answer with a head, and with a body once the client has read the head."""
        headers = [(b"content-length", b"4")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await self.goes_on.wait()
        await send({"type": "http.response.body", "body": b"body"})

    async def _websocket(self, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] != "websocket.disconnect":
            if "text" in message:
                self.messages.append(message["text"])

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return a connection of a client."""
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(self, *pieces: bytes) -> bytes:
        """Send bytes and return everything until the server ends the connection."""
        reader, writer = await self.open()
        with suppress(ConnectionError):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
        answer = b""
        with suppress(ConnectionError):
            while piece := await reader.read(65536):
                answer += piece
        writer.close()
        return answer


@pytest.fixture
def serve(settings: Any) -> Callable[..., Any]:
    """Start servers with limits of their own."""

    @asynccontextmanager
    async def start(limits: WebLimits = SMALL, **config: Any) -> AsyncIterator[Site]:
        settings.TANGRAM_WEB_LIMITS = limits
        site = Site()
        protocol = config.pop("http", LimitedHttp)
        site.server = uvicorn.Server(
            uvicorn.Config(
                LimitedRequests(site, limits),
                http=protocol,
                lifespan="off",
                log_level="critical",
                timeout_graceful_shutdown=1,
                **config,
            )
        )
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            site.port = listening.getsockname()[1]
            serving = asyncio.create_task(site.server.serve([listening]))
            while not site.server.started:
                await asyncio.sleep(0.01)
            yield site
            site.server.should_exit = True
            await serving

    return start
