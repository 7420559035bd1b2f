"""HTTP over ASGI: requests with a bounded body, JSON responses, problems (RFC 9457)."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, MutableMapping
from contextlib import suppress
from functools import lru_cache
from http import HTTPStatus
from itertools import count
from types import MappingProxyType
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qs

import msgspec

from contract.requests import EXCHANGE, MAX_BODY_BYTES
from contract.responses import ProblemDetails
from domain.errors import (
    CapacityError,
    Conflict,
    Gone,
    InvalidRequest,
    NotFound,
    StorageFull,
    TangramError,
    Unavailable,
)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

T = TypeVar("T")

#: Time limit for a response that is sent while the server shuts down.
SHUTDOWN_SEND_SECONDS = 1.0

#: Longest query that is kept parsed, and how many are: most requests repeat ``wait=30``.
CACHED_QUERY_BYTES = 64
CACHED_QUERIES = 256

encode_json = msgspec.json.Encoder().encode


def _parse_query(raw: bytes) -> Mapping[str, str]:
    parsed = parse_qs(raw.decode("latin-1"), keep_blank_values=True, errors="replace")
    return MappingProxyType({name: values[-1] for name, values in parsed.items()})


_parsed_query = lru_cache(CACHED_QUERIES)(_parse_query)


class HttpError(TangramError):
    """An error that the client reads as a problem of this status."""

    def __init__(self, status: int, code: str, detail: str, **headers: str) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.headers = headers
        self.errors: list[dict[str, str]] = []


#: Ids of requests are unique, not secret: a random part of the process, and a count.
_REQUESTS = count()
_PROCESS = secrets.token_hex(4)


def _new_request_id() -> str:
    return f"{_PROCESS}{next(_REQUESTS) & 0xFFFFFFFF:08x}"


def _request_id(given: bytes) -> str:
    """Return the id that a client gave its request, or a new one in place of an unusable one."""
    text = given.decode("latin-1")
    return text if text.isprintable() and 0 < len(text) <= 64 else _new_request_id()


class ClientGone(TangramError):
    """The client disconnected."""


class ServerExchange(Protocol):
    """One request and its response at the web server, without the messages of ASGI between.

    Each method does nothing where the case is not the common one: then the messages do it.
    """

    #: Status of the response, however it was sent; 0: none.
    status: int

    def whole_body(self) -> bytes | None:
        """Take the body, if it has arrived as a whole and was not read."""

    def respond(self, status: int, headers: bytes, body: bytes) -> bool:
        """Send a complete response in one write, and return whether that was done.

        ``headers``: lines, each with its end; ``Content-Length`` is among them.
        """


class HttpRequest:
    """One request. The body is read once, up to a limit."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope = scope
        self._receive = receive
        self.method: str = scope.get("method", "GET")  # a websocket has none
        self.path: str = scope["path"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        #: None: the response and the body pass as messages of ASGI.
        self.exchange: ServerExchange | None = scope.get(EXCHANGE)
        client = scope.get("client")
        #: Address of the client, as the web server resolved it behind trusted proxies; empty: unknown.
        self.address: str = client[0] if client else ""
        given = self.headers.get(b"x-request-id")
        self.id = _new_request_id() if given is None else _request_id(given)

    def header(self, name: bytes) -> str:
        """Return a header, or the empty string."""
        return self.headers.get(name, b"").decode("latin-1")

    def query(self) -> Mapping[str, str]:
        """Return the query; of a repeated parameter the last value."""
        raw: bytes = self.scope.get("query_string", b"")
        if not raw:
            return {}
        return _parsed_query(raw) if len(raw) <= CACHED_QUERY_BYTES else _parse_query(raw)

    async def body(self, limit_bytes: int = MAX_BODY_BYTES) -> bytes:
        """Return the body. Raises HttpError 413 above the limit, ClientGone when the client disconnects."""
        if self.exchange is not None and (whole := self.exchange.whole_body()) is not None:
            if len(whole) > limit_bytes:
                raise _too_large(limit_bytes)
            return whole
        self._check_declared(limit_bytes)
        body, more = await self._piece()
        if more:
            rest = [piece async for piece in self._rest(len(body), limit_bytes)]
            return b"".join((body, *rest))
        if len(body) > limit_bytes:
            raise _too_large(limit_bytes)
        return body

    async def chunks(self, limit_bytes: int) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. Raises as `body`."""
        self._check_declared(limit_bytes)
        async for piece in self._rest(0, limit_bytes):
            yield piece

    async def _rest(self, size: int, limit_bytes: int) -> AsyncIterator[bytes]:
        """Yield what follows the first ``size`` bytes of the body."""
        more = True
        while more:
            piece, more = await self._piece()
            size += len(piece)
            if size > limit_bytes:
                raise _too_large(limit_bytes)
            if piece:
                yield piece

    async def _piece(self) -> tuple[bytes, bool]:
        """Return the next piece of the body, and whether more follow. Raises ClientGone."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        return message.get("body", b""), message.get("more_body", False)

    def _check_declared(self, limit_bytes: int) -> None:
        declared = self.headers.get(b"content-length", b"")
        if declared.isdigit() and int(declared) > limit_bytes:
            raise _too_large(limit_bytes)

    def again(self, body: bytes) -> HttpRequest:
        """Return a copy of this request whose body, which was read, can be read again."""
        unread = [body]

        async def receive() -> MutableMapping[str, Any]:
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            return await self._receive()

        copy = HttpRequest(self.scope, receive)
        copy.id, copy.exchange = self.id, None
        return copy

    @property
    def receive(self) -> Receive:
        """The ASGI channel of the body, for an application that reads it itself."""
        return self._receive

    async def disconnected(self) -> None:
        """Return when the client has disconnected. Only after the body was read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass


def channel_of(body: bytes, pieces: AsyncIterator[bytes] | None, outer: Receive) -> Receive:
    """Return a channel with a body of its own, whole or in pieces, then the disconnect of the client."""
    unread = [body]

    async def receive() -> MutableMapping[str, Any]:
        if unread and pieces is None:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        if unread and pieces is not None:
            async for piece in pieces:
                return {"type": "http.request", "body": piece, "more_body": True}
            unread.clear()
            return {"type": "http.request", "body": b"", "more_body": False}
        return await outer()

    return receive


async def until_gone(request: HttpRequest, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of ``work``, which is cancelled when the client disconnects.

    The body of the request must have been read. Raises ClientGone, and what ``work`` raises.
    """
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(request.disconnected())
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone
    finally:
        working.cancel()
        gone.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


class TrackedSend:
    """Sends the messages of one response, and records that it has begun."""

    __slots__ = ("_send", "begun")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = False

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
        await self._send(message)


async def send_at_shutdown(sending: Awaitable[None]) -> None:
    """Send while the server shuts down; a client that reads nothing must not delay the shutdown."""
    with suppress(TimeoutError):
        async with asyncio.timeout(SHUTDOWN_SEND_SECONDS):
            await sending


def _too_large(limit_bytes: int) -> HttpError:
    return HttpError(413, "too_large", f"the body is larger than {limit_bytes} bytes")


class HttpResponse:
    """A complete response."""

    def __init__(
        self,
        status: int,
        body: Any = None,
        *,
        content_type: bytes = b"application/json",
        headers: dict[str, str] | None = None,
        raw: bytes | None = None,
    ) -> None:
        self.status = status
        self.content = raw if raw is not None else (b"" if body is None else encode_json(body))
        self.content_type = content_type
        self.headers = headers or {}

    def head(self, request_id: str) -> list[tuple[bytes, bytes]]:
        """Return its headers."""
        return [
            (b"content-type", self.content_type),
            (b"content-length", str(len(self.content)).encode()),
            (b"x-request-id", request_id.encode("latin-1")),
            *((k.lower().encode(), v.encode("latin-1")) for k, v in self.headers.items()),
        ]

    async def answer(self, request: HttpRequest, send: Send) -> None:
        """Send the response to ``request``, in one write where its web server offers that."""
        if request.exchange is not None:
            lines = self._lines(request.id)
            if lines and request.exchange.respond(self.status, lines, self.content):
                return
        await self.send(send, request.id)

    def _lines(self, request_id: str) -> bytes:
        """Return the headers as lines; nothing where one could end its line early."""
        lines = b"content-type: %b\r\ncontent-length: %d\r\nx-request-id: %b\r\n" % (
            self.content_type,
            len(self.content),
            request_id.encode("latin-1"),
        )
        for name, value in self.headers.items():
            if not (name.isprintable() and value.isprintable()):
                return b""
            lines += f"{name.lower()}: {value}\r\n".encode("latin-1")
        return lines

    async def send(self, send: Send, request_id: str) -> None:
        """Send the response by messages of ASGI."""
        headers = self.head(request_id)
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.content})


def problem_of(error: TangramError, request: HttpRequest) -> HttpResponse:
    """Return the problem document of an error."""
    status, headers = _status_of(error)
    code = "disk_full" if isinstance(error, StorageFull) else "unavailable"
    if isinstance(error, (HttpError, InvalidRequest)):
        code = error.code
    errors = list(error.errors) if isinstance(error, HttpError) else []
    if isinstance(error, InvalidRequest) and error.pointer:
        errors.append({"pointer": error.pointer, "detail": str(error)})
    problem = ProblemDetails(
        title=HTTPStatus(status).phrase,
        status=status,
        code=code,
        detail=str(error),
        instance=request.path,
        request_id=request.id,
        errors=errors,
    )
    return HttpResponse(status, problem, content_type=b"application/problem+json", headers=headers)


def status_of(error: TangramError) -> int:
    """Return the HTTP status that an error is answered with."""
    return _status_of(error)[0]


def _status_of(error: TangramError) -> tuple[int, dict[str, str]]:
    if isinstance(error, HttpError):
        return error.status, error.headers
    if isinstance(error, NotFound):
        return 404, {}
    if isinstance(error, Conflict):
        return 409, {}
    if isinstance(error, Gone):
        return 410, {}
    if isinstance(error, InvalidRequest):
        return 422, {}
    if isinstance(error, CapacityError):
        status = 503 if isinstance(error, Unavailable) else 429
        return status, {"Retry-After": str(max(1, round(error.retry_after_seconds)))}
    return 507 if isinstance(error, StorageFull) else 500, {}
