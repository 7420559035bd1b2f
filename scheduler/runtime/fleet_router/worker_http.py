"""Worker HTTP: kept connections to the workers of fleets, and answers as they arrive.

A client of HTTP/1.1 for one kind of request, a POST with a JSON body: a router passes each token of each generation, and a general
client costs several times as much per piece.

Rules
1. A connection carries one exchange at a time. It is kept after a complete answer, and closed after any other.
2. An idle connection is closed after `IDLE_SECONDS`, before servers close theirs (uvicorn: 5 s).
3. `NotReached`: nothing was sent. `BrokenOff`: the request was sent, and its answer will not be complete.
4. A consumer that is slower than the worker stops reading from it (`_HIGH_BYTES`).
"""

from __future__ import annotations

import asyncio
import ssl
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Mapping
from functools import lru_cache
from typing import Final, NamedTuple, cast

import httptools

from domain.apis import address_of

CONNECT_SECONDS: Final = 5.0
IDLE_SECONDS: Final = 4.0
#: Longest silence of a worker: a generation may wait long in its queue.
SILENT_SECONDS: Final = 3600.0
_HIGH_BYTES: Final = 256 * 1024


class NotReached(Exception):
    """No connection was made, so nothing was sent."""


class BrokenOff(Exception):
    """The worker ended an exchange without a complete answer."""


class Origin(NamedTuple):
    """Where a worker listens."""

    secure: bool
    host: str
    port: int

    @property
    def authority(self) -> str:
        """Host and port, as a request names them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@lru_cache(maxsize=4096)
def _origin_of(url: str) -> tuple[Origin, str]:
    """Return the origin of a worker's address, and the prefix of its paths."""
    base = address_of(url)
    return Origin(base.scheme == "https", base.host, base.port), base.prefix


class WorkerClient:
    """Connections to workers, by their addresses."""

    def __init__(self, silent_seconds: float = SILENT_SECONDS) -> None:
        self._silent_seconds = silent_seconds
        #: Idle connections, the latest used last.
        self._idle: defaultdict[Origin, list[HttpConnection]] = defaultdict(list)
        self._secure: ssl.SSLContext | None = None
        self._closed = False

    async def post(self, url: str, path: str, body: bytes, cache: str = "") -> WorkerAnswer:
        """Send a request; return its answer when status and headers are there. Raises NotReached, BrokenOff.

        ``url``: base address of a worker. ``cache``: name of the cache that is continued (`managers.llm.cache_moves.cache_name`).
        The caller closes the answer.
        """
        origin, prefix = _origin_of(url)
        connection = self._kept(origin) or await self._connect(origin)
        answer = WorkerAnswer(self, origin, connection)
        named = f"x-tangram-trajectory: {cache}\r\n" if cache else ""
        head = (
            f"POST {prefix}{path} HTTP/1.1\r\nhost: {origin.authority}\r\n"
            "content-type: application/json\r\naccept: */*\r\n"
            f"content-length: {len(body)}\r\n{named}\r\n"
        )
        try:
            connection.send(head.encode() + body, self._silent_seconds)
            await connection.head()
        except BaseException:
            answer.close()
            raise
        return answer

    async def is_reachable(self, url: str, seconds: float = 1.0) -> bool:
        """Return whether a worker accepts connections."""
        try:
            async with asyncio.timeout(seconds):
                connection = await self._connect(_origin_of(url)[0])
        except (NotReached, TimeoutError):
            return False
        connection.close()
        return True

    def keep(self, origin: Origin, connection: HttpConnection) -> None:
        """Keep a connection after a complete answer."""
        if self._closed:
            connection.close()
        else:
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle[origin].append(connection)

    def close(self) -> None:
        """Close all idle connections; those in use are closed after their answers."""
        self._closed = True
        for kept in self._idle.values():
            for connection in kept:
                connection.close()
        self._idle.clear()

    def sweep(self) -> None:
        """Close connections that have been idle for too long."""
        before = asyncio.get_running_loop().time() - IDLE_SECONDS
        for origin, kept in [*self._idle.items()]:
            while kept and (kept[0].closed or kept[0].idle_since < before):
                kept.pop(0).close()
            if not kept:
                del self._idle[origin]

    def _kept(self, origin: Origin) -> HttpConnection | None:
        kept = self._idle.get(origin)
        before = asyncio.get_running_loop().time() - IDLE_SECONDS
        while kept:
            connection = kept.pop()
            if not connection.closed and connection.idle_since >= before:
                return connection
            connection.close()
        return None

    async def _connect(self, origin: Origin) -> HttpConnection:
        loop = asyncio.get_running_loop()
        if origin.secure and self._secure is None:
            self._secure = ssl.create_default_context()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, connection = await loop.create_connection(
                    HttpConnection,
                    origin.host,
                    origin.port,
                    ssl=self._secure if origin.secure else None,
                )
        except (OSError, TimeoutError) as error:
            raise NotReached(str(error) or f"no answer in {CONNECT_SECONDS:g} s") from error
        return connection


class WorkerAnswer:
    """One answer: its status and headers, and its body as it arrives."""

    def __init__(self, client: WorkerClient, origin: Origin, connection: HttpConnection) -> None:
        self._client = client
        self._origin = origin
        self._connection: HttpConnection | None = connection

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self._open.status

    @property
    def headers(self) -> Mapping[bytes, bytes]:
        """The headers by their names in lower case; the last one of a name."""
        return self._open.headers

    @property
    def complete(self) -> bool:
        """Whether the whole body has arrived, read or not."""
        return self._open.complete

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. Raises BrokenOff."""
        while (piece := await self._open.piece()) is not None:
            yield piece

    def close(self) -> None:
        """Keep the connection after a complete answer; else close it, which ends the generation at the worker."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if connection.release():
            self._client.keep(self._origin, connection)
        else:
            connection.close()

    @property
    def _open(self) -> HttpConnection:
        assert self._connection is not None, "the answer is closed"
        return self._connection


class HttpConnection(asyncio.Protocol):
    """One connection and the exchange on it."""

    def __init__(self) -> None:
        self.idle_since = 0.0
        self.closed = False
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.complete = False
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._headed = False
        self._failed = ""
        self._body: deque[bytes] = deque()
        self._unread = 0
        self._wake: asyncio.Future[None] | None = None
        self._heard = 0.0
        self._silence: asyncio.TimerHandle | None = None

    # Of the consumer

    def send(self, request: bytes, silent_seconds: float) -> None:
        """Begin an exchange. Raises NotReached when the connection is closed already."""
        if self.closed or self._transport is None:
            raise NotReached("the connection was closed")
        self._parser = httptools.HttpResponseParser(self)
        self.status, self.headers, self.complete = 0, {}, False
        self._headed, self._failed, self._unread = False, "", 0
        self._body.clear()
        self._transport.write(request)
        loop = asyncio.get_running_loop()
        self._heard = loop.time()
        self._silence = loop.call_later(silent_seconds, self._check_silence, silent_seconds)

    async def head(self) -> None:
        """Wait for status and headers. Raises BrokenOff."""
        while not self._headed:
            await self._something()

    async def piece(self) -> bytes | None:
        """Return the next piece of the body; None at its end. Raises BrokenOff."""
        while not self._body:
            if self.complete:
                return None
            await self._something()
        piece = b"".join(self._body) if len(self._body) > 1 else self._body[0]
        self._body.clear()
        if self._unread > _HIGH_BYTES and self._transport is not None:
            self._transport.resume_reading()
        self._unread = 0
        return piece

    def release(self) -> bool:
        """End the exchange; return whether another one may follow."""
        if self._silence is not None:
            self._silence.cancel()
        parser, self._parser = self._parser, None
        return (
            self.complete
            and not self._body
            and not self.closed
            and parser is not None
            and parser.should_keep_alive()
        )

    def close(self) -> None:
        """Close it at once."""
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    async def _something(self) -> None:
        if self._failed:
            raise BrokenOff(self._failed)
        self._wake = asyncio.get_running_loop().create_future()
        await self._wake

    def _check_silence(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        left = self._heard + seconds - loop.time()
        if left > 0:
            self._silence = loop.call_later(left, self._check_silence, seconds)
        else:
            self._fail(f"it was silent for {seconds:g} s")

    def _fail(self, why: str) -> None:
        self._failed = self._failed or why
        self.close()
        self._awake()

    def _awake(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    # Of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Parse what arrived; bytes without a request are no answer."""
        if self._parser is None or self.complete:
            self.close()
            return
        self._heard = asyncio.get_running_loop().time()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(f"its answer is no HTTP: {error}")
            return
        if self._unread > _HIGH_BYTES and self._transport is not None:
            self._transport.pause_reading()
        self._awake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end: an answer without a length ends with its connection."""
        self.closed = True
        if self._parser is None or self.complete:
            return
        bounded = self.headers.keys() & {b"content-length", b"transfer-encoding"}
        if self._headed and not bounded and exc is None:
            self.complete = True
            self._awake()
        else:
            self._fail(str(exc) if exc else "it closed the connection")

    # Of the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Take the status; 1xx precedes the answer."""
        assert self._parser is not None
        self.status = self._parser.get_status_code()
        self._headed = self.status >= 200

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._body.append(body)
        self._unread += len(body)

    def on_message_complete(self) -> None:
        """Note the end of the answer."""
        if self._headed:
            self.complete = True
        else:
            self.headers = {}
