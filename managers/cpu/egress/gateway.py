"""Egress network of one command: the descriptor it inherits, its variables, and the server behind it.

    gateway = EgressGateway(proxy)
    door = gateway.open(order)                   before the spawn: `door.prefix`, `door.handle`
    door.spawned()                               after it: connections are served
    await door.close()                           at its end

    server = await gateway.join(order, 4711, container)    before the command: connections are served
    await server.close()                                   at its end

The listening socket belongs to the network of the command: when both sides have closed it, the network
is gone. A container has a network without this already, which the gateway joins. Bounds hold for the
environment, whose name is given, over all its commands.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from domain.egress import EgressRules
from domain.ports import RunOrder
from managers.cpu.egress.joined_network import listen_in
from managers.cpu.egress.proxy import HEAD_BYTES, EgressProxy
from managers.cpu.egress.usage import EnvironmentUsage

_log = logging.getLogger(__name__)

#: Port of the proxy, as commands see it.
PORT: Final = 3128
_ENTRY: Final = Path(__file__).with_name("namespace_entry.py")
_URL: Final = f"http://127.0.0.1:{PORT}"
_DIRECT: Final = "localhost,127.0.0.1,::1"
#: Variables by which programs find a proxy: curl, apt, pip, git, Go and most others; npm.
VARIABLES: Final = {
    **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), _URL),
    **dict.fromkeys(("npm_config_proxy", "npm_config_https_proxy"), _URL),
    **dict.fromkeys(("no_proxy", "NO_PROXY", "npm_config_noproxy"), _DIRECT),
}


class EgressUnavailable(Exception):
    """This command cannot have an egress network here."""


class EgressServer:
    """The proxy on one listening socket, with the rules of one command and the counts of its environment."""

    def __init__(self, proxy: EgressProxy, rules: EgressRules, usage: EnvironmentUsage) -> None:
        self._proxy, self._rules, self._usage = proxy, rules, usage
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def environment(self) -> str:
        """Name of the environment."""
        return self._usage.name

    def follow(self, rules: EgressRules) -> None:
        """Serve later connections by other rules."""
        self._rules = rules

    async def listen(self, listener: socket.socket) -> None:
        """Serve the connections of a socket, which is closed with the server."""
        listener.setblocking(False)
        self._server = await asyncio.start_server(self._serve, sock=listener, limit=HEAD_BYTES)

    async def close(self) -> None:
        """End the server and its connections."""
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()
        if self._serving:
            await asyncio.wait(self._serving)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            await self._proxy.serve(reader, writer, self._rules, self._usage)
        finally:
            self._serving.discard(task)


class EgressDoor:
    """The network of one command that is about to be made, and its server."""

    def __init__(self, server: EgressServer) -> None:
        self._server = server
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._ours.setblocking(False)
        #: Descriptor that the command inherits.
        self.handle = theirs.detach()
        self._taken = False
        self._opening: asyncio.Task[None] | None = None

    @property
    def prefix(self) -> list[str]:
        """Beginning of the command line."""
        return [sys.executable, "-I", "-S", str(_ENTRY), str(self.handle), str(PORT)]

    def take(self) -> int:
        """Return the descriptor, which the caller closes after the spawn."""
        self._taken = True
        return self.handle

    def spawned(self) -> None:
        """Serve connections from now on."""
        self._opening = asyncio.create_task(self._open(), name="egress")

    async def close(self) -> None:
        """End the server and its connections."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait({self._opening})
        self._ours.close()
        if not self._taken:
            os.close(self.handle)
        await self._server.close()

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self._ours, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self._ours)
        with suppress(OSError):
            _, handles, _, _ = socket.recv_fds(self._ours, 1, 1)
            if handles:
                await self._server.listen(socket.socket(fileno=handles[0]))
                return
        _log.warning("the egress network of %s could not be made", self._server.environment)


class EgressGateway:
    """Egress of a node."""

    def __init__(self, proxy: EgressProxy) -> None:
        self.proxy = proxy

    def open(self, order: RunOrder) -> EgressDoor:
        """Open the network of the command of an order. Raises EgressUnavailable, OSError."""
        return EgressDoor(self.serving(order))

    async def join(self, order: RunOrder, pid: int, container: str) -> EgressServer:
        """Serve the command of an order in the network of a container, whose first process is ``pid``.

        Raises EgressUnavailable.
        """
        server = self.serving(order)
        try:
            listener = await asyncio.to_thread(listen_in, pid, container, PORT)
        except OSError as error:
            raise EgressUnavailable(
                f"the node worker cannot join the network of its container: {error}; it has to run"
                " as root, on the machine of the engine"
            ) from error
        await server.listen(listener)
        return server

    def serving(self, order: RunOrder) -> EgressServer:
        """Return a server for the environment of an order that does not listen yet. Raises EgressUnavailable."""
        if order.egress is None:
            raise EgressUnavailable("its pool has no egress.hosts any more, or requires no sandbox")
        name = order.action.trajectory_key or order.id
        return EgressServer(self.proxy, order.egress, self.proxy.usage.of(name))
