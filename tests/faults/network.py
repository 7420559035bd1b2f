"""A network between parts: a proxy that can delay, lose and cut what passes.

It forwards connections to one address, in a thread of its own. `delay_seconds` holds back each piece of data; `lost`
holds back all of it while connections stay open, as when packets are dropped; `cut` closes all connections.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

#: Address of one side: a unix socket, or host and port.
Address = Path | tuple[str, int]
_PIECE_BYTES = 65536


class Network:
    """Forwards ``listen`` to ``target`` until `close`."""

    def __init__(self, listen: Address, target: Address) -> None:
        #: Connections that are opened from now on lead there.
        self.target = target
        self._listen = listen
        self.delay_seconds = 0.0
        #: Pieces of data that have passed, and connections that were cut.
        self.passed = self.cut_connections = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._ready.wait(60)

    def lose(self) -> None:
        """Let nothing pass from now on; connections stay open."""
        self._call(self._open.clear)

    def restore(self) -> None:
        """Let everything pass, without delay."""
        self.delay_seconds = 0.0
        self._call(self._open.set)

    def cut(self) -> None:
        """Close all connections; others may be opened."""
        self._call(self._close_all)

    def close(self) -> None:
        """End it."""
        self._call(self._over.set)
        self._thread.join(60)

    def _call(self, do: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(do)

    def _close_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
            self.cut_connections += 1

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._open, self._over = asyncio.Event(), asyncio.Event()
        self._open.set()
        if isinstance(self._listen, Path):
            server = await asyncio.start_unix_server(self._accept, self._listen)
        else:
            server = await asyncio.start_server(self._accept, *self._listen)
        self._ready.set()
        await self._over.wait()
        server.close()
        self._close_all()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if isinstance(self.target, Path):
                inward, outward = await asyncio.open_unix_connection(self.target)
            else:
                inward, outward = await asyncio.open_connection(*self.target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, outward}
        self._keep(self._forward(reader, outward))
        self._keep(self._forward(inward, writer))

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(_PIECE_BYTES):
                await self._open.wait()
                if self.delay_seconds:
                    await asyncio.sleep(self.delay_seconds)
                writer.write(data)
                await writer.drain()
                self.passed += 1
        except OSError:
            pass
        finally:
            self._writers.discard(writer)
            writer.close()
