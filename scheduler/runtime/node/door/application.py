"""ASGI application of a node door: checks the secret, finds the handler, sends what it answers.

A handler runs in a task that is cancelled when the connection closes. An error before the response has begun
becomes a problem; one after it breaks the connection off, so that a body without its end is never
taken for a complete one.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from typing import Any, Final, cast

import msgspec

from domain.errors import CapacityError, InvalidRequest, TangramError, Unavailable
from scheduler.runtime.asgi_socket import AsgiSocket, Message, PeerGone, Receive, Send
from scheduler.runtime.node.door.gate import EnvironmentGate
from scheduler.runtime.node.door.routes import (
    DOOR_HEADER,
    PROBLEM_HEADER,
    DoorError,
    DoorRequest,
    DoorResponse,
    DoorRoutes,
    status_of,
)

log = logging.getLogger(__name__)

_HTTP: Final = "http"
#: Below it other nodes read snapshots.
SNAPSHOTS_PATH: Final = "/snapshots/"


class _Incoming:
    """Body of a request, and the end of its connection."""

    def __init__(self, receive: Receive, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self._receive = receive
        self._read = asyncio.Event()
        if not any(name in {b"content-length", b"transfer-encoding"} for name, _ in headers):
            self._read.set()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the pieces of the body. Raises PeerGone."""
        while not self._read.is_set():
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise PeerGone
            if not message.get("more_body"):
                self._read.set()
            if piece := message.get("body", b""):
                yield piece

    async def gone(self) -> None:
        """Return when the connection has closed; noticed after the body was read."""
        await self._read.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass


class DoorApplication:
    """The routes of one node worker, for web processes that show the secret of this start."""

    def __init__(
        self,
        routes: DoorRoutes,
        secret: str | None,
        of_snapshots: str = "",
        gate: EnvironmentGate | None = None,
    ) -> None:
        """``secret`` None: each handler checks what the client shows; ``of_snapshots``: opens snapshots alone."""
        self._gate = gate or EnvironmentGate()
        self._routes = routes
        self._expected = None if secret is None else f"Bearer {secret}".encode()
        self._of_snapshots = f"Bearer {of_snapshots}".encode() if of_snapshots else b""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request or websocket."""
        if scope["type"] == _HTTP:
            await self._serve(scope, receive, send)
        else:
            await self._serve_socket(scope, receive, send)

    def _admits(self, scope: Message) -> bool:
        if self._expected is None:
            return True
        shown = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(shown) != 1:
            return False
        if hmac.compare_digest(shown[0], self._expected):
            return True
        reads = scope.get("method") == "GET" and scope["path"].startswith(SNAPSHOTS_PATH)
        return bool(self._of_snapshots and reads) and hmac.compare_digest(
            shown[0], self._of_snapshots
        )

    async def _serve(self, scope: Message, receive: Receive, send: Send) -> None:
        if not self._admits(scope):
            await _send_whole(send, _problem(_UNAUTHORIZED))
            return
        incoming = _Incoming(receive, scope["headers"])
        request = DoorRequest(scope, incoming)
        if self._routes.is_short(request.method, request.path):
            await self._answer(request, send)
            return
        work = asyncio.ensure_future(self._answer(request, send))
        gone = asyncio.ensure_future(incoming.gone())
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            work.cancel()
            gone.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)

    async def _answer(self, request: DoorRequest, send: Send) -> None:
        try:
            async with self._gate.using(request.trajectory):
                await self._handle(request, send)
        except Unavailable as error:  # of the gate; the handler's own are answered
            await _send_whole(send, _problem(error))

    async def _handle(self, request: DoorRequest, send: Send) -> None:
        response: DoorResponse | None = None
        try:
            match = self._routes.find(request.method, request.path)
            request.parameters = match.parameters
            response = await match.handler(request)
            if isinstance(response.body, bytes):
                await _send_whole(send, response)
                return
        except PeerGone:
            return
        except Exception as error:
            await _send_whole(send, _problem(_logged(error, request)))
            return
        try:
            await _send_pieces(send, response, response.body)
        except Exception as error:
            # The server breaks off a connection whose response has no end.
            _logged(error, request)

    async def _serve_socket(self, scope: Message, receive: Receive, send: Send) -> None:
        socket = AsgiSocket(receive, send)
        if not await socket.connected():
            return
        if not self._admits(scope):
            await _refuse(socket, _UNAUTHORIZED)
            return
        request = DoorRequest(scope, _EmptyBody())
        try:
            match = self._routes.find_socket(request.path)
            request.parameters = match.parameters
            async with self._gate.using(request.trajectory):
                await match.handler(request, socket)
            await socket.close()
        except PeerGone:
            return
        except Exception as error:
            shown = _logged(error, request)
            with contextlib.suppress(PeerGone):
                if socket.accepted:
                    await socket.close(1011, str(shown))
                else:
                    await _refuse(socket, shown)


class _EmptyBody:
    """Body of a websocket request."""

    async def chunks(self) -> AsyncIterator[bytes]:
        return
        yield b""


_UNAUTHORIZED: Final = DoorError(401, "unauthorized", "this is not the secret of this start")


def _logged(error: Exception, request: DoorRequest) -> TangramError:
    """Return the error for the client; one that is not the client's is logged."""
    if isinstance(error, TangramError):
        return error
    log.error("%s %s failed on this node", request.method, request.path, exc_info=error)
    return DoorError(500, "internal", "internal error of the node worker")


def _problem(error: TangramError) -> DoorResponse:
    status, code = status_of(error)
    members: dict[str, Any] = {"detail": str(error)}
    if isinstance(error, InvalidRequest) and error.pointer:
        members["pointer"] = error.pointer
    if isinstance(error, CapacityError):
        members["retry_after_seconds"] = error.retry_after_seconds
    headers = {PROBLEM_HEADER.decode(): code}
    return DoorResponse(status, msgspec.json.encode(members), headers)


def _headers(response: DoorResponse) -> list[tuple[bytes, bytes]]:
    given = [
        (name.lower().encode("latin-1"), value.encode("latin-1"))
        for name, value in response.headers.items()
    ]
    return [*given, (DOOR_HEADER, b"1")]


async def _send_whole(send: Send, response: DoorResponse) -> None:
    body = response.body
    assert isinstance(body, bytes)
    headers = [*_headers(response), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _send_pieces(send: Send, response: DoorResponse, pieces: AsyncIterator[bytes]) -> None:
    start = {
        "type": "http.response.start",
        "status": response.status,
        "headers": _headers(response),
    }
    await send(start)
    async with aclosing(cast("Any", pieces)):
        async for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _refuse(socket: AsgiSocket, error: TangramError) -> None:
    """Answer the handshake of a websocket with a problem."""
    response = _problem(error)
    assert isinstance(response.body, bytes)
    await socket.refuse(response.status, _headers(response), response.body)
