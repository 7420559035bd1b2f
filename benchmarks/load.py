"""A lean HTTP load generator: keep-alive connections, each waiting for its answer.

It parses only status and length, so that the generator takes little of the two cores that it
shares with what it measures.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import uvloop

NOOP = b'{"task":"bench","kind":"noop"}'


@dataclass
class Load:
    """Measurements of one run."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Answers per second."""
        return len(self.latencies) / self.seconds


def post(path: str, token: str, body: bytes) -> bytes:
    """Return a whole POST request."""
    return (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


async def exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> tuple[int, bytes]:
    """Send a request and return status and body."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head[9:12])
    at = head.lower().index(b"content-length:") + 15
    length = int(head[at : head.index(b"\r", at)])
    return status, await reader.readexactly(length)


async def connection(
    port: int, request: bytes, until: float, load: Load, *, host: str = "127.0.0.1"
) -> None:
    """Send one request after the other over one connection."""
    reader, writer = await asyncio.open_connection(host, port)
    while (began := time.perf_counter()) < until:
        status, body = await exchange(reader, writer, request)
        if status != 200:
            raise SystemExit(f"answered {status}: {body[:300]!r}")
        load.latencies.append(time.perf_counter() - began)
    writer.close()


async def _run(port: int, request: bytes, connections: int, seconds: float) -> Load:
    load = Load()
    began = time.perf_counter()
    await asyncio.gather(
        *(connection(port, request, began + seconds, load) for _ in range(connections))
    )
    load.seconds = time.perf_counter() - began
    return load


def run(port: int, token: str, connections: int, seconds: float) -> Load:
    """Submit noops and wait for each, over so many connections, for so long."""
    request = post("/api/v1/actions?wait=30", token, NOOP)
    return uvloop.run(_run(port, request, connections, seconds))
