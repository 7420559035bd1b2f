"""A local API that holds others to its limits, in a process of its own; it counts what came.

It takes 50 requests in any second and 20 at once; what is above that gets 429 with Retry-After, and
one answer in fifty is a 500. A request takes 50 to 350 ms. ``GET /stats`` says what was seen.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import uvloop

RATE, AT_ONCE, ERRORS = 50, 20, 0.02


class Api:
    """The server's books."""

    def __init__(self) -> None:
        self.accepted: deque[float] = deque()
        self.came: deque[float] = deque()
        self.peak = self.peak_accepted = self.open = self.peak_open = 0
        self.count = {"requests": 0, "served": 0, "limited": 0, "errors": 0}
        self.random = random.Random(7)

    def judge(self) -> int:
        """Return the status of a request that came now."""
        now = asyncio.get_running_loop().time()
        self.count["requests"] += 1
        self.came.append(now)
        for window in (self.came, self.accepted):
            while window[0] <= now - 1.0 if window else False:
                window.popleft()
        self.peak = max(self.peak, len(self.came))
        if len(self.accepted) >= RATE or self.open >= AT_ONCE:
            self.count["limited"] += 1
            return 429
        self.accepted.append(now)
        self.peak_accepted = max(self.peak_accepted, len(self.accepted))
        return 500 if self.random.random() < ERRORS else 200

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                at = head.lower().find(b"content-length:")
                length = int(head[at + 15 : head.index(b"\r", at)]) if at >= 0 else 0
                await reader.readexactly(length)
                if head.startswith(b"GET /stats "):
                    writer.write(_response(200, json.dumps(self.stats()).encode()))
                else:
                    writer.write(await self._work())
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _work(self) -> bytes:
        status = self.judge()
        if status == 429:
            return _response(429, b"{}", "Retry-After: 1\r\n")
        self.open += 1
        self.peak_open = max(self.peak_open, self.open)
        try:
            await asyncio.sleep(self.random.uniform(0.05, 0.35))
        finally:
            self.open -= 1
        self.count["errors" if status == 500 else "served"] += 1
        return _response(status, b'{"score": 1.0}')

    def stats(self) -> dict[str, int]:
        """Return what was seen."""
        return {
            **self.count,
            "peak_requests_per_second": self.peak,
            "peak_accepted_per_second": self.peak_accepted,
            "peak_open": self.peak_open,
        }


def _response(status: int, body: bytes, headers: str = "") -> bytes:
    head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


async def _main() -> None:
    api = Api()
    server = await asyncio.start_server(api.serve, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    """Serve until ended; the first line of output is the port."""
    uvloop.run(_main())


@contextmanager
def local_api() -> Iterator[int]:
    """Run one; yield its port."""
    command = [sys.executable, "-c", "from benchmarks.local_api import main; main()"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait()
