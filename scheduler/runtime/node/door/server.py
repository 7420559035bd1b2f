"""Server of a node door: the socket, its address in Redis, and the start and end of the service.

Rules
1. A unix socket is created in a folder that only the worker's user can enter; a socket path has at most 107
   bytes, so under a longer path the folder is a temporary one. Each start has a file of its own: the end of a
   former worker does not remove it.
2. The address is stored only while the socket listens.
3. At the end connections get `GRACE_SECONDS`, then their handlers are cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import redis
import uvicorn

from contract.door_address import UNIX, DoorAddress
from domain.errors import InvalidRequest
from scheduler.runtime.node.door.application import DoorApplication
from scheduler.runtime.node.door.gate import EnvironmentGate
from scheduler.runtime.node.door.routes import DoorRoutes
from scheduler.runtime.redis.door_addresses import DoorAddresses

log = logging.getLogger(__name__)

#: Longest path of a unix socket on Linux.
_SOCKET_PATH_BYTES: Final = 107
BACKLOG: Final = 512
#: Longer than web processes keep an idle connection, so that they close it first.
KEEP_ALIVE_SECONDS: Final = 75
GRACE_SECONDS: Final = 1
#: Connections of all web processes together.
MAX_CONNECTIONS: Final = 8192
#: Largest message of a websocket.
MAX_MESSAGE_BYTES: Final = 1024 * 1024


class DoorOptions(NamedTuple):
    """Options of a door that an operator sets."""

    #: Folder of the unix socket.
    directory: Path
    #: ``host:port`` to listen on; empty: a unix socket, for web processes of the same machine.
    listen: str = ""
    #: ``host:port`` under which web processes reach it (default: this host's name, and the port); port 0: the one that it listens on.
    advertise: str = ""

    @classmethod
    def parse(cls, settings: Mapping[str, str], directory: Path) -> DoorOptions:
        """Read ``door`` and ``door_address``. Raises InvalidRequest."""
        options = cls(directory, settings.get("door", ""), settings.get("door_address", ""))
        for name, value in (
            ("TANGRAM_NODE_DOOR", options.listen),
            ("TANGRAM_NODE_DOOR_ADDRESS", options.advertise),
        ):
            if value and not value.rpartition(":")[2].isdigit():
                raise InvalidRequest(f"{name}={value!r} is not host:port, as in 0.0.0.0:7411")
        return options


class EmbeddedServer(uvicorn.Server):
    """A server inside an event loop that has other work: signals are not its concern, and it ends at once when it is idle."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ending = asyncio.Event()

    def end(self) -> None:
        """Let `serve` return."""
        self.should_exit = True
        self._ending.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals of the process alone."""
        yield

    async def main_loop(self) -> None:
        """Wait for the end; uvicorn itself looks for it ten times a second."""
        await self.on_tick(0)
        await self._ending.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End connections; without one there is nothing to wait for."""
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown(sockets)
            return
        for each in (*self.servers, *(sockets or ())):
            each.close()
        for server in self.servers:
            await server.wait_closed()


def door_server(application: DoorApplication) -> EmbeddedServer:
    """Return the server of a door."""
    config = uvicorn.Config(
        application,
        lifespan="off",
        access_log=False,
        log_config=None,
        log_level="warning",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
        limit_concurrency=MAX_CONNECTIONS,
        backlog=BACKLOG,
        ws_max_size=MAX_MESSAGE_BYTES,
        ws_per_message_deflate=False,
        server_header=False,
        date_header=False,
    )
    return EmbeddedServer(config)


class NodeDoor:
    """The door of one node worker."""

    def __init__(
        self, addresses: DoorAddresses, node: str, options: DoorOptions, routes: DoorRoutes
    ) -> None:
        self._addresses = addresses
        self._node = node
        self._options = options
        self._routes = routes
        #: What requests may use now.
        self.gate = EnvironmentGate()
        self._listening: socket.socket | None = None
        self._path: Path | None = None
        self._temporary: Path | None = None
        self._serving: asyncio.Task[None] | None = None
        self.address: DoorAddress | None = None

    async def open(self, incarnation: int) -> None:
        """Listen and serve. Raises OSError when the address cannot be used."""
        secret, of_snapshots = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        self._listening, address = self._listen(incarnation)
        self.address = DoorAddress(address, secret, incarnation, socket.gethostname(), of_snapshots)
        self._server = door_server(DoorApplication(self._routes, secret, of_snapshots, self.gate))
        self._serving = asyncio.create_task(self._server.serve([self._listening]))

    async def publish(self) -> None:
        """Store the address. Raises redis.RedisError."""
        if self.address is not None:
            await self._addresses.publish(self._node, self.address)

    async def close(self) -> None:
        """End the service; idempotent."""
        address, self.address = self.address, None
        if address is not None:
            with contextlib.suppress(redis.RedisError):  # the entry of a dead worker opens nothing
                await self._addresses.withdraw(self._node, address)
        if self._serving is not None:
            self._server.end()
            await asyncio.wait({self._serving})
            self._serving = None
        if self._listening is not None:
            self._listening.close()
            self._remove_socket()
            self._listening = None

    def _listen(self, incarnation: int) -> tuple[socket.socket, str]:
        if self._options.listen:
            host, _, port = self._options.listen.rpartition(":")
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listening = socket.create_server((host.strip("[]"), int(port)), family=family)
            bound = listening.getsockname()[1]
            reached, _, known = self._options.advertise.rpartition(":")
            port = known if known.strip("0") else bound
            return listening, f"{reached or socket.gethostname()}:{port}"
        path = self._path = self._socket_path(f"door-{incarnation}.sock")
        for former in path.parent.glob("door-*.sock"):
            former.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(path))
        listening.listen(BACKLOG)
        return listening, f"{UNIX}{path}"

    def _socket_path(self, name: str) -> Path:
        folder = self._options.directory
        if len(os.fsencode(folder / name)) <= _SOCKET_PATH_BYTES:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o700)
            return folder / name
        self._temporary = Path(tempfile.mkdtemp(prefix="tangram-door-"))
        return self._temporary / name

    def _remove_socket(self) -> None:
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None
        elif self._path is not None:
            self._path.unlink(missing_ok=True)
        self._path = None
