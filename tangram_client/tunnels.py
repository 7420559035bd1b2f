"""Ports of this machine that lead to servers inside an environment.

Each connection to a local port is carried over a websocket of its own, to the server that listens on a port
inside the environment. An empty message is the end of one direction. Anyone who reaches the local port reaches
the server: by default that is this machine alone.

It needs the package ``websockets`` (``pip install 'tangram-client[shell]'``).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, Self

from tangram_client import _file_calls
from tangram_client._sockets import check_websockets, open_socket
from tangram_client.context import ClientContext

_PIECE_BYTES: Final = 32 * 1024
#: Connections that are open at once.
_MOST: Final = 256


class PortForward:
    """A local port for one port of an environment, open inside ``async with``."""

    def __init__(
        self,
        context: ClientContext,
        trajectory: str,
        port: int,
        *,
        project: str | None = None,
        address: str = "127.0.0.1",
        local_port: int = 0,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        """``local_port``: 0 for any free one. ``report`` gets a line for each connection that fails."""
        self.port = port
        self.address = address
        self._wanted = local_port
        self._report = report
        self._places = asyncio.Semaphore(_MOST)
        self._open = _opener(context, trajectory, port, project)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def local_port(self) -> int:
        """The port of this machine, while it is open."""
        if self._server is None:
            raise RuntimeError("the port is not open")
        return int(self._server.sockets[0].getsockname()[1])

    async def __aenter__(self) -> Self:
        """Open the local port. Raises OSError."""
        self._server = await asyncio.start_server(self._accept, self.address, self._wanted)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        carrying = _carry(self._open, self._places, self._report, reader, writer)
        task = asyncio.get_running_loop().create_task(carrying)
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)


def _opener(
    context: ClientContext, trajectory: str, port: int, project: str | None
) -> Callable[[], Any]:
    """Return the function that opens the websocket of one connection. Raises TangramClientError without the package."""
    check_websockets()
    query = "" if project is None else f"?project={project}"
    path = f"{_file_calls.base_of(trajectory)}/tunnels/{port}{query}"
    return partial(open_socket, context, path, compression=None, max_size=None)


async def _carry(
    opened: Callable[[], Any],
    places: asyncio.Semaphore,
    report: Callable[[str], None],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Carry one connection; an empty message is the end of one direction."""
    from websockets.exceptions import ConnectionClosed, InvalidStatus

    try:
        async with places, opened() as socket:
            sending = asyncio.ensure_future(_send(reader, socket))
            try:
                async for message in socket:
                    if message:
                        writer.write(message)
                        await writer.drain()
                    elif writer.can_write_eof():
                        writer.write_eof()
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
    except InvalidStatus as error:
        report(_reason(bytes(error.response.body or b"")) or str(error))
    except (OSError, ConnectionClosed) as error:
        report(f"a connection broke off: {error}")
    finally:
        writer.close()


async def _send(reader: asyncio.StreamReader, socket: Any) -> None:
    while piece := await reader.read(_PIECE_BYTES):
        await socket.send(piece)
    await socket.send(b"")


def _reason(body: bytes) -> str:
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(body)["detail"])
    return ""
