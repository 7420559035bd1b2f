"""HTTP and websocket protocols of the web server, with limits for what a client sends.

Chosen by ``uvicorn --http tangram_web.serving.protocol:LimitedHttp``. Every byte is counted when it
arrives: the parser keeps an unfinished header for as long as it grows, so a limit behind the parser
would be too late. Bytes that belong neither to a body nor to a complete request are limited to
`WebLimits.header_bytes`; that includes trailers and extensions of chunks.

A refused connection reads no more of the request: it discards what arrives for `LINGER_SECONDS`, so
that the client can read the refusal, and ends.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from django.conf import settings
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import Frame

from tangram_web.serving.connections import ConnectionTable, table_of
from tangram_web.serving.limits import COUNTED, Refusal, WebLimits, too_large

LINGER_SECONDS: Final = 2.0
#: Pongs that a client does not read.
MAX_UNREAD_BYTES: Final = 1024 * 1024


def configured_limits() -> WebLimits:
    """Return the limits of the settings."""
    limits: WebLimits = settings.TANGRAM_WEB_LIMITS
    return limits


class LimitedHttp(HttpToolsProtocol):
    """One connection of a client."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.address = ""
        self._limits = configured_limits()
        self._table = table_of(server_state, self._limits)
        config.ws_max_size = min(config.ws_max_size, self._limits.websocket_bytes)
        if self.ws_protocol_class is not None:
            self.ws_protocol_class = LimitedWebSocket
        #: Bytes since the last piece of a body or the last complete request.
        self._loose_bytes = 0
        #: Time of the first of them.
        self._loose_since = 0.0
        self._refused_at: float | None = None
        self._in_body = False
        #: Start of the time in which the rate is measured, and the bytes before it.
        self._body_since = 0.0
        self._body_before = 0
        self._body_bytes = 0
        self._body_limit = 0
        #: Its pieces are passed on, so only those that wait are held.
        self._streamed = False
        #: Bytes of the bodies that this connection has in memory.
        self._held_bytes = 0
        self._unread_bytes = 0
        self._unread_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection, or refuse it."""
        super().connection_made(transport)
        if self.client is not None and self.client[0] not in self._limits.proxies:
            self.address = self.client[0]
        refusal = self._table.join(self)
        self._loose_since = self._table.now
        if refusal is not None:
            self._refuse(refusal, linger=False)
        else:
            self._table.waits(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._table.leave(self)
        self._release_body()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count the bytes, and parse them."""
        if self._refused_at is not None:
            return
        if not self._loose_bytes:
            self._loose_since = self._table.now
        elif self._loose_bytes > self._limits.header_bytes:
            self._refuse(self._large_head())
            return
        # A head that one read completes is measured in `on_headers_complete`.
        self._loose_bytes += len(data)
        super().data_received(data)

    def on_headers_complete(self) -> None:
        """Check the head; the request starts only if it keeps all limits."""
        if self._refused_at is not None:
            return
        refusal = self._head_refusal()
        if refusal is not None:
            self._refuse(refusal)
            return
        self._loose_bytes = 0
        self._in_body = True
        self._body_since = self._table.now
        self._body_bytes = self._body_before = 0
        self._table.works(self)
        self.scope[COUNTED] = True  # type: ignore[typeddict-unknown-key]
        before = self.cycle
        super().on_headers_complete()
        # Not for an upgrade, which starts no cycle.
        if self.cycle is not before:
            self.cycle.transport = ResponseWrites(self.transport, self.loop)  # type: ignore[assignment]

    def _head_refusal(self) -> Refusal | None:
        headers, limits = self.headers, self._limits
        size, declared = len(self.url), b""
        for name, value in headers:
            size += len(name) + len(value)
            if name == b"content-length":
                declared = value
        if size > limits.header_bytes or len(headers) > limits.header_count:
            return self._large_head()
        if len(self.pipeline) >= limits.pipelined:
            return Refusal(429, "too_many_requests", "wait for responses on this connection", 1)
        method = self.parser.get_method().decode("ascii")
        self._body_limit = limits.body_limit(method, self.url)
        self._streamed = limits.is_streamed(method, self.url, declared)
        if declared.isdigit() and (len(declared) > 18 or int(declared) > self._body_limit):
            return too_large(self._body_limit)
        return None

    def on_body(self, body: bytes) -> None:
        """Count a piece of the body."""
        if self._refused_at is not None:
            return
        self._loose_bytes = 0
        self._body_bytes += len(body)
        waiting = len(self.cycle.body) if self._streamed else self._held_bytes
        self._hold(waiting + len(body))
        if self._body_bytes > self._body_limit:
            self._refuse(too_large(self._body_limit))
        elif self._table.body_bytes > self._limits.bodies_bytes:
            detail = "the bodies of all requests together are too large; send this one again"
            self._refuse(Refusal(503, "too_many_bytes", detail, 1))
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        if self._refused_at is not None:
            return
        self._loose_bytes = 0
        self._in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._release_body()
        self._table.waits(self)
        super().on_response_complete()

    def handle_websocket_upgrade(self) -> None:
        """Let a websocket take over; it counts as a connection of its own."""
        self._table.leave(self)
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP."""
        if self._refused_at is None:
            self._refuse(Refusal(400, "malformed_http", "this is not a valid HTTP request"))

    def swept(self, now: float) -> None:
        """End the connection if it is too slow."""
        if self._refused_at is not None:
            if now - self._refused_at >= LINGER_SECONDS:
                self.transport.abort()
        elif self._in_body:
            self._check_body_rate(now)
        elif self._loose_bytes or self.cycle is None:
            self._check_head(now)
        self._check_reader(now)

    def give_way(self) -> None:
        """End the connection at once, without a response."""
        self.transport.abort()

    def _check_head(self, now: float) -> None:
        seconds = self._limits.header_seconds
        if now - self._loose_since > seconds:
            detail = f"the head of the request took longer than {seconds:g} s"
            self._refuse(Refusal(408, "too_slow", detail))

    def _check_body_rate(self, now: float) -> None:
        limits = self._limits
        seconds = now - self._body_since
        arrived = self._body_bytes - self._body_before
        # Where reading is paused, the application is slow, not the client.
        if not self.flow.read_paused:
            if seconds <= limits.body_grace_seconds:
                return
            if arrived < limits.body_bytes_per_second * seconds:
                least = f"{limits.body_bytes_per_second:g} bytes a second"
                self._refuse(Refusal(408, "too_slow", f"the body arrives at less than {least}"))
                return
        self._body_since, self._body_before = now, self._body_bytes

    def _check_reader(self, now: float) -> None:
        """Cut a client that reads nothing of what it was sent."""
        unread = self.transport.get_write_buffer_size()
        if not unread or unread < self._unread_bytes or not self._unread_bytes:
            self._unread_since = now
        elif now - self._unread_since > self._limits.write_seconds:
            self.transport.abort()
        self._unread_bytes = unread

    def _large_head(self) -> Refusal:
        limits = self._limits
        detail = (
            f"the head has more than {limits.header_bytes} bytes or {limits.header_count} lines"
        )
        return Refusal(431, "headers_too_large", detail)

    def _refuse(self, refusal: Refusal, *, linger: bool = True) -> None:
        """Send the refusal, unless a response has begun, and end the connection."""
        self._refused_at = self.loop.time()
        self._table.works(self)
        self._release_body()
        self._unset_keepalive_if_required()
        begun = False
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            begun = cycle.response_started
            # The application learns that its client is gone, and its response is dropped.
            cycle.disconnected = True
            cycle.message_event.set()
        self.pipeline.clear()
        if begun:
            self.transport.abort()
            return
        self.flow.resume_reading()
        self.transport.write(refusal.response())
        if linger and self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()

    def _release_body(self) -> None:
        self._hold(0)

    def _hold(self, size_bytes: int) -> None:
        self._table.body_bytes += size_bytes - self._held_bytes
        self._held_bytes = size_bytes


class ResponseWrites:
    """The transport of one response: its head leaves together with the first piece of its body.

    uvicorn writes them apart, and each write is a system call that wakes the client. A head is held until
    the next write or the next turn of the event loop, so that of a stream is not delayed.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: bytes | None = None
        self._flushing: asyncio.Handle | None = None
        self._begun = False

    def write(self, data: bytes) -> None:
        """Write a piece; the first one waits for the second."""
        if not self._begun:
            self._begun = True
            self._held = data
            self._flushing = self._loop.call_soon(self._flush)
            return
        held, self._held = self._held, None
        if held is None:
            self._transport.write(data)
            return
        if self._flushing is not None:
            self._flushing.cancel()
        self._transport.write(held + data)

    def close(self) -> None:
        """Write what is held, and close."""
        self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether the transport closes."""
        return self._transport.is_closing()

    def _flush(self) -> None:
        held, self._held = self._held, None
        if held is not None and not self._transport.is_closing():
            self._transport.write(held)


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
