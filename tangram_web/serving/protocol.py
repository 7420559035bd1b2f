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
from functools import lru_cache
from typing import Any, Final

from uvicorn._types import ASGISendEvent
from uvicorn.config import Config
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from contract.requests import EXCHANGE
from tangram_web.serving.connections import (
    SWEEP_SECONDS,
    LimitedWebSocket,
    configured_limits,
    table_of,
)
from tangram_web.serving.limits import (
    CACHED_TARGET_BYTES,
    COUNTED,
    Refusal,
    RequestTarget,
    target_of,
    too_large,
)
from tangram_web.serving.ticks import wait_for_signals

LINGER_SECONDS: Final = 2.0

# This module is loaded before the server runs.
wait_for_signals()


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
        self._target: RequestTarget
        # Sweeps are `SWEEP_SECONDS` apart.
        self._keep_alive_seconds = self.timeout_keep_alive + SWEEP_SECONDS
        #: Length of the body, as the head declares it.
        self._declared = b""
        #: Whether a proxy names its client.
        self._is_forwarded = False
        behind = self.app
        #: The application for requests that no proxy forwarded.
        self._app = behind.app if isinstance(behind, ProxyHeadersMiddleware) else behind
        #: Time of the last response, while no request follows.
        self._idle_since: float | None = None
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
        self._idle_since = None
        self._table.works(self)
        self.scope[COUNTED] = True  # type: ignore[typeddict-unknown-key]
        before: RequestResponseCycle | None = self.cycle
        if before is None or before.response_complete:
            self._begin()
            return
        super().on_headers_complete()
        # Not for an upgrade, which starts no cycle.
        if self.cycle is not before:
            self.cycle.transport = ResponseWrites(self.transport, self.loop)  # type: ignore[assignment]

    def _begin(self) -> None:
        """Start the request as uvicorn does, with an `HttpExchange`; no other one is open."""
        scope, target, parser = self.scope, self._target, self.parser
        scope["method"] = target.method
        version = parser.get_http_version()
        if version != "1.1":
            scope["http_version"] = version
        if parser.should_upgrade() and self._should_upgrade():
            return
        scope["path"] = self.root_path + target.path
        scope["raw_path"] = self.root_path.encode("ascii") + target.raw_path
        scope["query_string"] = target.query
        cycle = self.cycle = HttpExchange(self, version != "1.0" and parser.should_keep_alive())
        scope[EXCHANGE] = cycle  # type: ignore[literal-required]
        task = self.loop.create_task(cycle.run_asgi(self.app if self._is_forwarded else self._app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def on_message_begin(self) -> None:
        """Prepare for the head of a request."""
        super().on_message_begin()
        self._declared, self._is_forwarded = b"", False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header."""
        name = name.lower()
        if name == b"content-length":
            self._declared = value
        elif name == b"expect":
            self.expect_100_continue = value.lower() == b"100-continue"
        elif name.startswith(b"x-forwarded-"):
            self._is_forwarded = True
        self.headers.append((name, value))

    def _head_refusal(self) -> Refusal | None:
        limits, url, declared = self._limits, self.url, self._declared
        # What has arrived has the head in it.
        if self._loose_bytes > limits.header_bytes:
            size = len(url) + sum(len(name) + len(value) for name, value in self.headers)
            if size > limits.header_bytes:
                return self._large_head()
        if len(self.headers) > limits.header_count:
            return self._large_head()
        if len(self.pipeline) >= limits.pipelined:
            return Refusal(429, "too_many_requests", "wait for responses on this connection", 1)
        read = target_of if len(url) <= CACHED_TARGET_BYTES else target_of.__wrapped__
        target = self._target = read(self.parser.get_method(), url)
        self._body_limit = limits.file_bytes if target.is_upload else limits.body_bytes
        self._streamed = target.is_upload and limits.is_streamed(target.method, url, declared)
        if declared.isdigit() and (len(declared) > 18 or int(declared) > self._body_limit):
            return too_large(self._body_limit)
        return None

    def on_body(self, body: bytes) -> None:
        """Count a piece of the body."""
        if self._refused_at is not None:
            return
        self._loose_bytes = 0
        size = len(body)
        self._body_bytes += size
        if self._streamed:
            self._hold(len(self.cycle.body) + size)
        else:
            self._held_bytes += size
            self._table.body_bytes += size
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
        """Wait for the next request; a sweep ends the connection when none comes."""
        if self._held_bytes:
            self._release_body()
        self._table.waits(self)
        if self.pipeline:
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        self._idle_since = self._table.now
        if self.flow.read_paused:
            self.flow.resume_reading()

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
        elif self._idle_since is not None and now - self._idle_since > self._keep_alive_seconds:
            self.transport.close()
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


class HttpExchange(RequestResponseCycle):
    """A request that is alone on its connection, and its response (`scheduler.runtime.gateway.http.ServerExchange`)."""

    def __init__(self, protocol: HttpToolsProtocol, keep_alive: bool) -> None:
        super().__init__(
            scope=protocol.scope,
            transport=protocol.transport,
            flow=protocol.flow,
            logger=protocol.logger,
            access_logger=protocol.access_logger,
            access_log=protocol.access_log,
            default_headers=protocol.server_state.default_headers,
            message_event=self,  # type: ignore[arg-type]
            expect_100_continue=protocol.expect_100_continue,
            keep_alive=keep_alive,
            on_response=protocol.on_response_complete,
        )
        self._loop = protocol.loop
        self.status = 0
        #: Whether there is something to receive, and who waits for it: an event of uvicorn's cycle.
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Let `receive` return: a piece of the body has arrived, the response is complete, or the client is gone."""
        self._is_set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def clear(self) -> None:
        """Let the next `receive` wait."""
        self._is_set = False

    async def wait(self) -> None:
        """Wait until it is `set`."""
        while not self._is_set:
            self._waiter = self._loop.create_future()
            await self._waiter

    def whole_body(self) -> bytes | None:
        """Take the body, if it has arrived as a whole."""
        if self.more_body or self.disconnected or not self._is_set:
            return None
        self._is_set = False
        body, self.body = bytes(self.body), bytearray()
        if self.flow.read_paused:
            self.flow.resume_reading()
        return body

    async def send(self, message: ASGISendEvent) -> None:
        """Send a message of ASGI; its head leaves with the first piece of the body."""
        if message["type"] == "http.response.start" and not self.response_started:
            self.status = message["status"]
            self.transport = ResponseWrites(self.transport, self._loop)  # type: ignore[assignment]
        await super().send(message)

    def respond(self, status: int, headers: bytes, body: bytes) -> bool:
        """Send a complete response in one write; not where that is an uncommon case."""
        if (
            self.response_started
            or self.disconnected
            or self.flow.write_paused
            or self.access_log
            or not self.keep_alive
            or self.scope["method"] == "HEAD"
        ):
            return False
        self.response_started = self.response_complete = True
        self.status = status
        own = header_lines(tuple(self.default_headers))
        self.transport.write(b"".join((STATUS_LINE[status], own, headers, b"\r\n", body)))
        self.set()
        self.on_response()
        return True


@lru_cache(4)
def header_lines(headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """Return headers as lines; those of the server change once a second."""
    return b"".join(b"%b: %b\r\n" % header for header in headers)


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
