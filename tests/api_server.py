"""A local API with the faults that a test needs, over plain HTTP/1.1."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class Asked:
    """A request as received."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Behave = Callable[[Asked, asyncio.StreamWriter], Awaitable[None]]


def answer(status: int = 200, body: bytes = b"{}", headers: str = "", reason: str = "OK") -> bytes:
    """Return a whole response."""
    head = f"HTTP/1.1 {status} {reason}\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


@dataclass
class LocalApi:
    """A running server; ``behave`` may be exchanged while it runs."""

    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    behave: Behave | None = None
    connections: int = 0

    def says(self, *responses: bytes) -> None:
        """Answer with these in turn, with the last one for ever."""
        left = list(responses)

        async def behave(_: Asked, writer: asyncio.StreamWriter) -> None:
            writer.write(left.pop(0) if len(left) > 1 else left[0])

        self.behave = behave

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                asked = await _read(reader)
                self.asked.append(asked)
                if self.behave is None:
                    writer.write(answer())
                else:
                    await self.behave(asked, writer)
                await writer.drain()
                if writer.is_closing():
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


async def _read(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    line, *rest = head.split("\r\n")
    method, path, _ = line.split(" ")
    headers = {n.lower(): v.strip() for n, _, v in (each.partition(":") for each in rest if each)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Asked(method, path, headers, body)


@asynccontextmanager
async def local_api(context: ssl.SSLContext | None = None) -> AsyncIterator[LocalApi]:
    """Serve on a free port of this machine."""
    api = LocalApi()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        await api.serve(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context, limit=2**20)
    api.port = server.sockets[0].getsockname()[1]
    try:
        yield api
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        with contextlib.suppress(Exception):
            await asyncio.gather(*tasks, return_exceptions=True)
