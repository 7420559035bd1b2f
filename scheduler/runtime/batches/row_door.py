"""Row door of a rollout worker: ranks of trainers pull rows from it, past the gateway and the scheduler loop.

    GET /batches/{batch}/rows?rank=R&rows=0-63,70      Authorization: Bearer tgb_…      → frames (`rollout.tokens.row_frames`)

Rules
1. It is another server than the door that web processes use (`scheduler.runtime.rollouts.worker_door`): that one has a secret which
   opens everything. This one has no secret, and each request shows the token of its rank.
2. It listens on the loopback unless the operator states an address that other machines reach. Rows cross unencrypted, as between
   web processes and nodes: the network is the operator's.
3. Its address is stored while the worker shows life. A worker serves the rows of all rollouts whose logs it can read, its own and others'.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
from typing import Final, NamedTuple

import redis

from domain.errors import InvalidRequest
from rollout.tokens.row_frames import MEDIA_TYPE
from scheduler.runtime.batches.row_addresses import RowAddress, RowAddresses
from scheduler.runtime.batches.row_streams import RowsRequest, RowStreams
from scheduler.runtime.node.door.application import DoorApplication
from scheduler.runtime.node.door.routes import DoorRequest, DoorResponse, DoorRoutes
from scheduler.runtime.node.door.server import BACKLOG, EmbeddedServer, door_server

log = logging.getLogger(__name__)

#: A free port of the loopback.
LISTEN: Final = "127.0.0.1:0"
_SCHEME: Final = "bearer "


class RowDoorOptions(NamedTuple):
    """Options of the door that an operator sets."""

    #: ``host:port`` to listen on.
    listen: str = LISTEN
    #: ``host:port`` under which ranks reach it (default: the host that it listens on, or this host's name, and the port).
    advertise: str = ""

    @classmethod
    def parse(cls, listen: str, advertise: str) -> RowDoorOptions | None:
        """Return the options of settings; None for ``off``. Raises InvalidRequest."""
        if listen == "off":
            return None
        for name, value in (
            ("TANGRAM_ROLLOUT_ROWS", listen),
            ("TANGRAM_ROLLOUT_ROWS_ADDRESS", advertise or LISTEN),
        ):
            if not value.rpartition(":")[2].isdigit():
                raise InvalidRequest(f"{name}={value!r} is not host:port, as in 0.0.0.0:7431")
        return cls(listen, advertise)


class RowDoor:
    """The row door of one rollout worker."""

    def __init__(
        self, addresses: RowAddresses, worker: str, options: RowDoorOptions, streams: RowStreams
    ) -> None:
        self._addresses = addresses
        self._worker = worker
        self._options = options
        self._streams = streams
        self._listening: socket.socket | None = None
        self._server: EmbeddedServer | None = None
        self._serving: asyncio.Task[None] | None = None
        self.address: RowAddress | None = None

    async def open(self, incarnation: int) -> None:
        """Listen and serve. Raises OSError when the address cannot be used."""
        host, _, port = self._options.listen.rpartition(":")
        host = host.strip("[]")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listening = socket.create_server((host, int(port)), family=family, backlog=BACKLOG)
        bound = self._listening.getsockname()[1]
        address = self._options.advertise or f"{_reached_at(host)}:{bound}"
        self.address = RowAddress(address, incarnation)
        routes = DoorRoutes()
        routes.add("GET", "/batches/{batch}/rows", self._rows)
        self._server = door_server(DoorApplication(routes, None))
        self._serving = asyncio.create_task(self._server.serve([self._listening]))

    async def publish(self) -> None:
        """Store the address. Raises redis.RedisError."""
        if self.address is not None:
            await self._addresses.publish(self._worker, self.address)

    async def close(self) -> None:
        """End the service; idempotent."""
        address, self.address = self.address, None
        if address is not None:
            with contextlib.suppress(redis.RedisError):  # a worker without life is not listed
                await self._addresses.withdraw(self._worker, address)
        if self._serving is not None and self._server is not None:
            self._server.end()
            await asyncio.wait({self._serving})
            self._serving = None
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    async def _rows(self, request: DoorRequest) -> DoorResponse:
        """GET /batches/{batch}/rows."""
        query = request.query
        shown = request.headers.get(b"authorization", b"").decode("latin-1")
        token = shown[len(_SCHEME) :] if shown.lower().startswith(_SCHEME) else ""
        asked = RowsRequest(
            request.parameters["batch"], query.get("rank", ""), query.get("rows", ""), token
        )
        found = await self._streams.checked(asked)
        return DoorResponse(200, self._streams.frames(found), {"content-type": MEDIA_TYPE})


def _reached_at(host: str) -> str:
    """Return the host under which others reach an address that is listened on."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.is_unspecified:
        return socket.gethostname()
    return f"[{host}]" if address.version == 6 else host
