"""Calls whose answers are read whole, over kept connections without httpx's requests and pools.

A call of httpx takes more than a millisecond of CPU time, most of it for features that the API does not need; its HTTP
in Python, h11, a third of one. Here httptools, the parser of Node.js, reads the answers. Streams, uploads in pieces
and servers behind a proxy keep using httpx.

Rules
1. A connection belongs to one call at a time. Idle ones are used last in, first out.
2. A connection that the server has closed meanwhile is not used: the call begins on another one.
3. A call that fails or is cancelled closes its connection.
4. Errors are those of httpx (`httpx.TransportError`), so that callers know one kind; ValueError for a call that is no HTTP.
"""

from __future__ import annotations

import asyncio
import re
import select
import socket
import ssl
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, cast
from urllib.parse import urlencode, urlsplit

import httptools
import httpx

from tangram_client._core import ApiCall, ApiResponse

CONNECT_SECONDS: Final = 5.0
#: Idle connections that are kept.
KEPT: Final = 1024
_READ_BYTES: Final = 65_536
_NO_TARGET: Final = re.compile(r"[\x00-\x20\x7f]")
_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})


class RequestWriter:
    """Writes calls to one server as HTTP requests."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        parts = urlsplit(url)
        self.host = parts.hostname or ""
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        self._prefix = parts.path.rstrip("/")
        self._common = _lines({"Host": parts.netloc.rpartition("@")[2], **headers})

    def request(self, call: ApiCall[Any]) -> bytes:
        """Return a whole request. Raises ValueError for characters that no target or header has."""
        assert not callable(call.content)
        target, content = self._prefix + call.path, call.content or b""
        if call.params:
            target += "?" + urlencode(call.params)
        if _NO_TARGET.search(target):
            raise ValueError(f"this is not a path of the API: {target!r}")
        head = f"{call.method} {target} HTTP/1.1\r\n{self._common}{_lines(call.headers)}"
        if content or call.method in _WITH_BODY:
            head += f"Content-Length: {len(content)}\r\n"
        return f"{head}\r\n".encode() + content


def _lines(headers: Mapping[str, str]) -> str:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    if not lines.count("\r") == lines.count("\n") == len(headers):
        raise ValueError("the value of a header has a line break")
    return lines


class AnswerReader:
    """Reads the answers of one connection, one after the other."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._pieces: list[bytes] = []
        self._has_head = False
        self._answer: ApiResponse | None = None
        #: Whether the server keeps the connection after the last answer.
        self.kept = False

    def feed(self, data: bytes) -> ApiResponse | None:
        """Take bytes; return the answer once it is whole. Raises httpx.RemoteProtocolError."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise httpx.RemoteProtocolError(f"not an HTTP answer: {error}") from error
        answer, self._answer = self._answer, None
        return answer

    def ended(self) -> ApiResponse:
        """Return the answer whose end is that of its connection. Raises httpx.RemoteProtocolError."""
        if not self._has_head or self._headers.keys() & {"content-length", "transfer-encoding"}:
            raise httpx.RemoteProtocolError("the server closed the connection without an answer")
        return self._whole()

    def _whole(self) -> ApiResponse:
        content = b"".join(self._pieces)
        return ApiResponse(self._parser.get_status_code(), self._headers, content)

    # Called by the parser

    def on_message_begin(self) -> None:
        self._headers, self._pieces, self._has_head = {}, [], False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._has_head = True

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() >= 200:  # below: the answer follows
            self._answer, self.kept = self._whole(), self._parser.should_keep_alive()


class ShortCalls:
    """Kept connections to one server; safe for threads."""

    def __init__(
        self, url: str, headers: Mapping[str, str], context: ssl.SSLContext | None
    ) -> None:
        """``context``: of an ``https`` URL."""
        self._writer = RequestWriter(url, headers)
        self._context = context
        self._idle: deque[tuple[socket.socket, AnswerReader]] = deque()
        self._closed = False

    def answer(self, call: ApiCall[Any]) -> ApiResponse:
        """Send a call whose content is bytes or None. Raises httpx.TransportError, ValueError."""
        request = self._writer.request(call)
        connection, reader = self._connection()
        kept = False
        try:
            connection.settimeout(call.timeout_seconds)
            connection.sendall(request)
            answer = None
            while answer is None:
                data = connection.recv(_READ_BYTES)
                answer = reader.feed(data) if data else reader.ended()
            kept = bool(data) and reader.kept and not self._closed and len(self._idle) < KEPT
        except TimeoutError as error:
            raise httpx.ReadTimeout(str(error)) from error
        except OSError as error:
            raise httpx.ReadError(str(error) or type(error).__name__) from error
        finally:
            if kept:
                self._idle.append((connection, reader))
            else:
                connection.close()
        return answer

    def close(self) -> None:
        """Close all connections; a call that is under way closes its own."""
        self._closed = True
        while self._idle:
            self._idle.pop()[0].close()

    def _connection(self) -> tuple[socket.socket, AnswerReader]:
        """Return an open connection. Raises httpx.TransportError."""
        while self._idle:
            try:
                idle = self._idle.pop()
            except IndexError:  # another thread has taken it
                break
            if not _is_readable(idle[0]):
                return idle
            idle[0].close()
        address = self._writer.host, self._writer.port
        try:
            connection = socket.create_connection(address, CONNECT_SECONDS)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._context is not None:
                connection = self._context.wrap_socket(connection, server_hostname=address[0])
            return connection, AnswerReader()
        except TimeoutError as error:
            raise httpx.ConnectTimeout(str(error)) from error
        except OSError as error:
            raise httpx.ConnectError(str(error)) from error


def _is_readable(connection: socket.socket) -> bool:
    """Whether an idle connection has something to read: its end, or what no request asked for."""
    if not hasattr(select, "poll"):  # Windows
        return bool(select.select([connection], [], [], 0)[0])
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


class AsyncShortCalls:
    """Kept connections to one server, of one event loop."""

    def __init__(
        self, url: str, headers: Mapping[str, str], context: ssl.SSLContext | None
    ) -> None:
        """``context``: of an ``https`` URL."""
        self._writer = RequestWriter(url, headers)
        self._context = context
        self._idle: deque[_KeptConnection] = deque()
        self._closed = False

    async def answer(self, call: ApiCall[Any]) -> ApiResponse:
        """Send a call whose content is bytes or None. Raises httpx.TransportError, ValueError."""
        request = self._writer.request(call)
        connection = await self._connection()
        answer = None
        try:
            answer = await connection.exchange(request, call.timeout_seconds)
            return answer
        finally:
            kept = answer is not None and connection.is_idle and not self._closed
            if kept and len(self._idle) < KEPT:
                self._idle.append(connection)
            else:
                connection.close()

    async def aclose(self) -> None:
        """Close all connections; a call that is under way closes its own."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    async def _connection(self) -> _KeptConnection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_idle:
                return connection
            connection.close()
        writer = self._writer
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, connection = await asyncio.get_running_loop().create_connection(
                    _KeptConnection, writer.host, writer.port, ssl=self._context
                )
        except TimeoutError as error:
            raise httpx.ConnectTimeout(str(error)) from error
        except OSError as error:
            raise httpx.ConnectError(str(error)) from error
        return connection


class _KeptConnection(asyncio.Protocol):
    """One connection of an event loop."""

    def __init__(self) -> None:
        self._reader = AnswerReader()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._done: asyncio.Future[ApiResponse] | None = None
        self._seconds = 0.0
        #: Time of the last byte, and bytes that were not sent then.
        self._moved_at, self._unsent = 0.0, 0

    @property
    def is_idle(self) -> bool:
        """Whether it takes a call."""
        transport = self._transport
        open_ = transport is not None and not transport.is_closing()
        return open_ and self._done is None and self._reader.kept

    async def exchange(self, request: bytes, seconds: float) -> ApiResponse:
        """Send a request; return its answer. Raises httpx.TransportError, ReadTimeout after ``seconds`` without a byte."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise httpx.ReadError("the server closed the connection")
        done: asyncio.Future[ApiResponse] = self._loop.create_future()
        self._done = done
        self._seconds, self._moved_at = seconds, self._loop.time()
        transport.write(request)
        self._unsent = transport.get_write_buffer_size()
        self._watch = self._loop.call_later(seconds, self._check)
        try:
            return await done
        finally:
            self._done = None
            self._watch.cancel()

    def close(self) -> None:
        """Close it at once."""
        if self._transport is not None:
            self._transport.abort()

    def _check(self) -> None:
        """End the call when no byte moved for as long as it waits."""
        if self._done is None or self._done.done():
            return
        unsent = 0 if self._transport is None else self._transport.get_write_buffer_size()
        if unsent < self._unsent:
            self._unsent, self._moved_at = unsent, self._loop.time()
        left = self._moved_at + self._seconds - self._loop.time()
        if left > 0:
            self._watch = self._loop.call_later(left, self._check)
        else:
            self._done.set_exception(httpx.ReadTimeout(f"no answer within {self._seconds:g} s"))

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._done is None or self._done.done():
            self.close()  # what no request asked for
            return
        self._moved_at = self._loop.time()
        try:
            answer = self._reader.feed(data)
        except httpx.TransportError as error:
            self._done.set_exception(error)
            return
        if answer is not None:
            self._done.set_result(answer)

    def connection_lost(self, error: Exception | None) -> None:
        self._reader.kept = False
        done = self._done
        if done is None or done.done():
            return
        if error is not None:
            done.set_exception(httpx.ReadError(str(error) or type(error).__name__))
            return
        try:
            done.set_result(self._reader.ended())
        except httpx.TransportError as closed:
            done.set_exception(closed)
