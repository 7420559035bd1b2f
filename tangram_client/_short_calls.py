"""Calls whose answers are read whole, over kept connections without httpx's requests and pools.

A call of httpx takes more than a millisecond of CPU time, most of it for features that the API does not need.
`ShortCalls` uses the standard library's HTTP client, `AsyncShortCalls` the connections of httpcore, which httpx
itself sends with. Streams, uploads in pieces and servers behind a proxy keep using httpx.

Rules
1. A connection belongs to one call at a time. Idle ones are used last in, first out.
2. A connection that the server has closed meanwhile is not used: the call begins on another one.
3. A call that fails or is cancelled closes its connection.
4. Errors are those of httpx (`httpx.TransportError`), so that callers know one kind.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections import deque
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import anyio
import httpcore
import httpx

from tangram_client._core import ApiCall, ApiResponse

CONNECT_SECONDS: Final = 5.0
#: Idle connections that are kept.
KEPT: Final = 1024


class ShortCalls:
    """Kept connections to one server; safe for threads."""

    def __init__(
        self, url: str, headers: Mapping[str, str], context: ssl.SSLContext | None
    ) -> None:
        """``context``: of an ``https`` URL."""
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port
        self._prefix = parts.path.rstrip("/")
        self._headers = dict(headers)
        self._context = context
        self._idle: deque[HTTPConnection] = deque()
        self._closed = False

    def answer(self, call: ApiCall[Any]) -> ApiResponse:
        """Send a call whose content is bytes or None. Raises httpx.TransportError."""
        assert not callable(call.content)
        target = self._prefix + call.path
        if call.params:
            target += "?" + urlencode(call.params)
        headers = {**self._headers, **call.headers} if call.headers else self._headers
        connection = self._connection(call.timeout_seconds)
        kept = False
        try:
            connection.request(call.method, target, call.content, headers)
            response = connection.getresponse()
            content = response.read()
            kept = not response.will_close and not self._closed and len(self._idle) < KEPT
        except TimeoutError as error:
            raise httpx.ReadTimeout(str(error)) from error
        except (OSError, HTTPException) as error:
            raise httpx.ReadError(str(error) or type(error).__name__) from error
        finally:
            if kept:
                self._idle.append(connection)
            else:
                connection.close()
        return ApiResponse(response.status, _lower_case(response), content)

    def close(self) -> None:
        """Close all connections; a call that is under way closes its own."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def _connection(self, timeout_seconds: float) -> HTTPConnection:
        """Return an open connection. Raises httpx.TransportError."""
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread has taken it
                break
            if connection.sock is not None and not _is_readable(connection.sock):
                connection.sock.settimeout(timeout_seconds)
                return connection
            connection.close()
        connection = self._new()
        try:
            connection.connect()
        except TimeoutError as error:
            raise httpx.ConnectTimeout(str(error)) from error
        except OSError as error:
            raise httpx.ConnectError(str(error)) from error
        connection.sock.settimeout(timeout_seconds)
        return connection

    def _new(self) -> HTTPConnection:
        if self._context is None:
            return HTTPConnection(self._host, self._port, timeout=CONNECT_SECONDS)
        return HTTPSConnection(
            self._host, self._port, timeout=CONNECT_SECONDS, context=self._context
        )


def _is_readable(connection: socket.socket) -> bool:
    """Whether an idle connection has something to read: its end, or what no request asked for."""
    if not hasattr(select, "poll"):  # Windows
        return bool(select.select([connection], [], [], 0)[0])
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(0))


def _lower_case(response: HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.getheaders()}


class AsyncShortCalls:
    """Kept connections to one server, of one event loop."""

    def __init__(
        self, url: str, headers: Mapping[str, str], context: ssl.SSLContext | None
    ) -> None:
        """``context``: of an ``https`` URL."""
        parts = urlsplit(url)
        scheme = parts.scheme.encode()
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if scheme == b"https" else 80)
        self._prefix = parts.path.rstrip("/")
        self._origin = httpcore.Origin(scheme, self._host.encode(), self._port)
        self._headers = _pairs({"Host": parts.netloc.rpartition("@")[2], **headers})
        self._context = context
        self._backend = httpcore.AnyIOBackend()
        self._idle: deque[httpcore.AsyncHTTP11Connection] = deque()
        self._closed = False

    async def answer(self, call: ApiCall[Any]) -> ApiResponse:
        """Send a call whose content is bytes or None. Raises httpx.TransportError."""
        assert not callable(call.content)
        request = self._request(call, call.content or b"")
        try:
            connection = await self._connection()
            kept = False
            try:
                response = await connection.handle_async_request(request)
                content = await response.aread()
                await response.aclose()
                kept = connection.is_idle() and not self._closed and len(self._idle) < KEPT
            finally:
                if kept:
                    self._idle.append(connection)
                else:
                    with anyio.CancelScope(shield=True):
                        await connection.aclose()
        except _ERRORS as error:
            raise _of_httpx(error) from error
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in response.headers
        }
        return ApiResponse(response.status, headers, content)

    async def aclose(self) -> None:
        """Close all connections; a call that is under way closes its own."""
        self._closed = True
        while self._idle:
            await self._idle.pop().aclose()

    def _request(self, call: ApiCall[Any], content: bytes) -> httpcore.Request:
        target = self._prefix + call.path
        if call.params:
            target += "?" + urlencode(call.params)
        headers = [*self._headers, *_pairs(call.headers)]
        if content or call.method in {"POST", "PUT", "PATCH"}:
            headers.append((b"Content-Length", b"%d" % len(content)))
        origin = self._origin
        url = httpcore.URL(
            scheme=origin.scheme, host=origin.host, port=origin.port, target=target.encode()
        )
        seconds = call.timeout_seconds
        timeout = {"read": seconds, "write": seconds, "connect": CONNECT_SECONDS}
        return httpcore.Request(
            call.method, url, headers=headers, content=content, extensions={"timeout": timeout}
        )

    async def _connection(self) -> httpcore.AsyncHTTP11Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_idle() and not connection.has_expired():
                return connection
            await connection.aclose()
        stream = await self._backend.connect_tcp(self._host, self._port, timeout=CONNECT_SECONDS)
        if self._context is not None:
            stream = await stream.start_tls(self._context, self._host, timeout=CONNECT_SECONDS)
        return httpcore.AsyncHTTP11Connection(self._origin, stream)


_ERRORS: Final = (
    httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError,
    httpcore.ConnectionNotAvailable,
)  # fmt: skip


def _of_httpx(error: Exception) -> httpx.TransportError:
    """Return the error of httpx that has the name of one of httpcore."""
    kind = getattr(httpx, type(error).__name__, httpx.ReadError)
    found: httpx.TransportError = kind(str(error))
    return found


def _pairs(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]
