"""Connections of one web process: who has how many, which of them wait, and which are too slow.

A connection *waits* from its start, or from the end of a response, until the head of its next request
is complete. When the process has as many connections as it may have, a new one takes the place of
the one that waits longest, so slow clients never keep others out; when none waits, it is refused.

One sweep a second looks at all connections. No request sets a timer of its own.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections import Counter
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from django.conf import settings
from uvicorn.config import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import Frame

from tangram_web.serving.limits import RESERVED_DESCRIPTORS, Refusal, WebLimits

log = logging.getLogger(__name__)

SWEEP_SECONDS: Final = 1.0
#: Pongs that a client does not read.
MAX_UNREAD_BYTES: Final = 1024 * 1024


class Connection(Protocol):
    """A connection that a sweep looks at."""

    address: str

    def swept(self, now: float) -> None:
        """End the connection if it is too slow."""

    def give_way(self) -> None:
        """End the connection at once, without a response."""


class ConnectionTable:
    """The open connections of one server."""

    def __init__(self, limits: WebLimits) -> None:
        self.limits = limits
        self.most = min(limits.connections, most_descriptors() - RESERVED_DESCRIPTORS)
        #: Time of the last sweep: requests read it in place of a clock.
        self.now = 0.0
        #: Bytes of bodies of requests that are not answered yet.
        self.body_bytes = 0
        self._open: set[Connection] = set()
        self._waiting: dict[Connection, None] = {}
        self._by_address: Counter[str] = Counter()
        self._sweeping: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._open)

    def join(self, connection: Connection) -> Refusal | None:
        """Count a new connection; return why it is refused, if it is."""
        address, limits = connection.address, self.limits
        if address and self._by_address[address] >= limits.connections_per_address:
            detail = f"{address} has {limits.connections_per_address} connections; close some"
            return Refusal(429, "too_many_connections", detail, 1)
        if len(self._open) >= self.most and not self._make_room():
            detail = f"this process serves {self.most} requests at once; try again"
            return Refusal(503, "too_many_connections", detail, 1)
        self._open.add(connection)
        if address:
            self._by_address[address] += 1
        if self._sweeping is None:
            self._plan_sweep()
        return None

    def leave(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        self._waiting.pop(connection, None)
        if connection not in self._open:
            return
        self._open.discard(connection)
        if address := connection.address:
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]

    def waits(self, connection: Connection) -> None:
        """Record that the connection has no request now."""
        self._waiting[connection] = None

    def works(self, connection: Connection) -> None:
        """Record that the head of a request is complete."""
        self._waiting.pop(connection, None)

    def _make_room(self) -> bool:
        longest = next(iter(self._waiting), None)
        if longest is None:
            return False
        self.leave(longest)
        longest.give_way()
        return True

    def _plan_sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self.now = loop.time()
        self._sweeping = loop.call_later(SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        self._sweeping = None
        if not self._open:  # the next connection plans a sweep
            return
        self._plan_sweep()
        for connection in tuple(self._open):
            connection.swept(self.now)


_tables: WeakKeyDictionary[ServerState, ConnectionTable] = WeakKeyDictionary()


def table_of(server: ServerState, limits: WebLimits) -> ConnectionTable:
    """Return the table that all connections of ``server`` share."""
    found = _tables.get(server)
    if found is None:
        found = _tables[server] = ConnectionTable(limits)
    return found


def most_descriptors() -> int:
    """Return how many files the process may have open, after raising that limit as far as permitted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (OSError, ValueError) as error:
            log.warning("the limit of open files stays at %d: %s", soft, error)
    return 65_536 if soft == resource.RLIM_INFINITY else soft


def configured_limits() -> WebLimits:
    """Return the limits of the settings."""
    limits: WebLimits = settings.TANGRAM_WEB_LIMITS
    return limits


class LimitedWebSocket(WebSocketsSansIOProtocol):
    """One websocket: bounded messages, fragments and unread pongs."""

    address = ""
    _table: ConnectionTable | None = None

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = configured_limits()
        self._table = table_of(server_state, self._limits)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the websocket."""
        super().connection_made(transport)
        assert self._table is not None
        if self.client is not None and self.client[0] not in self._limits.proxies:
            self.address = self.client[0]
        # Its HTTP connection has left a place.
        if self._table.join(self) is not None:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the websocket."""
        assert self._table is not None
        self._table.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Cut a client that sends, but does not read what it is sent in return."""
        if self.transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
            self.transport.abort()
            return
        super().data_received(data)

    def handle_cont(self, event: Frame) -> None:
        """Refuse a message of too many pieces, which may all be empty."""
        if len(self.frames) >= self._limits.websocket_frames:
            self.transport.abort()
            return
        super().handle_cont(event)

    def swept(self, now: float) -> None:
        """Do nothing: pings find a websocket whose client is gone."""

    def give_way(self) -> None:
        """End the websocket."""
        self.transport.abort()
