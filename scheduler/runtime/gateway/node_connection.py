"""Connections to the worker of one node: requests with streamed bodies, short ones, websockets, and refusals.

Raised are `NotConnected` (nothing was sent), `FormerSecret` (the worker was started again), `ElsewhereNow` (it does not
hold the environment), and `Unavailable`: the request was sent, and whether it was executed is unknown. A refusal is
raised as the error that the node raised (`NotFound`, `Conflict`, `InvalidRequest`, `CapacityError`, `StorageFull`); one
that has a status of its own, as 502 for a closed port, is an `HttpError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake, InvalidStatus
from websockets.typing import Subprotocol

from contract.door_address import DOOR_HEADER, DoorAddress, unreachable
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
from scheduler.runtime.fleet_router.worker_http import BrokenOff, HttpConnection, NotReached
from scheduler.runtime.gateway.http import HttpError

if TYPE_CHECKING:  # imported by its first use: a web process starts without it
    import httpx

CONNECT_SECONDS: Final = 3.0
#: Idle connections to a node are closed after this time, before the node closes them.
KEEP_ALIVE_SECONDS: Final = 30.0
IDLE_CONNECTIONS: Final = 64
#: Largest message of a websocket.
MAX_MESSAGE_BYTES: Final = 1024 * 1024
_PROBLEM: Final = "tangram-problem"
_MAX_PROBLEM_BYTES: Final = 65_536

#: Bytes, or pieces as they arrive.
Body = bytes | AsyncIterator[bytes]
#: The side of a websocket that leads to a node.
NodeSocket = ClientConnection


class _DoorProblem(msgspec.Struct):
    """Body of a refusal of a node."""

    detail: str = ""
    pointer: str = ""
    retry_after_seconds: float = 0.0


_problems = msgspec.json.Decoder(_DoorProblem)


class ElsewhereNow(Exception):
    """The node does not hold the environment."""


class FormerSecret(Exception):
    """The worker was started again after its address was read."""


class NotConnected(Exception):
    """No connection was made, so nothing was sent."""


class DoorCall(NamedTuple):
    """One request, to whichever node."""

    method: str
    #: Path and query, percent-encoded.
    target: str
    headers: dict[str, str]
    body: Body | None
    idle_seconds: float | None

    @property
    def repeatable(self) -> bool:
        """Whether the body can be sent a second time."""
        return self.body is None or isinstance(self.body, bytes)


class NodeConnection:
    """Address of a node, and the connections to it."""

    def __init__(self, name: str, address: DoorAddress) -> None:
        import httpx

        self.name = name
        self.address = address
        self._transport = httpx.AsyncHTTPTransport(
            uds=address.socket_path,
            trust_env=False,
            verify=False,  # the door speaks plain HTTP: no certificates are loaded for it
            limits=httpx.Limits(
                max_connections=None,
                max_keepalive_connections=IDLE_CONNECTIONS,
                keepalive_expiry=KEEP_ALIVE_SECONDS,
            ),
        )
        self.authority = "node" if address.socket_path is not None else address.address
        self.short = ShortRequests(address, self.authority)
        self._open = 0
        self._retired = False

    async def send(self, call: DoorCall) -> DoorAnswer:
        """Send a request; return the answer without its body. Raises httpx.HTTPError."""
        import httpx

        idle = call.idle_seconds
        timeouts = {
            "connect": CONNECT_SECONDS,
            "pool": CONNECT_SECONDS,
            "read": idle,
            "write": idle,
        }
        request = httpx.Request(
            call.method,
            f"http://{self.authority}{call.target}",
            headers={**call.headers, "authorization": f"Bearer {self.address.secret}"},
            content=call.body,
            extensions={"timeout": timeouts},
        )
        self._open += 1
        try:
            return DoorAnswer(self, await self._transport.handle_async_request(request))
        except BaseException:
            await self.released()
            raise

    async def released(self) -> None:
        """Count the end of a request."""
        self._open -= 1
        await self._close_unused()

    async def retire(self) -> None:
        """Close the connections once their requests have ended."""
        self._retired = True
        self.short.close()
        await self._close_unused()

    async def _close_unused(self) -> None:
        if self._retired and not self._open:
            await self._transport.aclose()


class DoorAnswer:
    """Response of a node, as it arrives."""

    def __init__(self, node: NodeConnection, response: httpx.Response) -> None:
        self._node = node
        self._response = response
        self.status = response.status_code
        self.headers: Mapping[str, str] = response.headers

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the pieces of the body. Raises Unavailable when the node breaks off."""
        import httpx

        try:
            async for piece in cast("AsyncIterator[bytes]", self._response.stream):
                yield piece
        except httpx.HTTPError as error:
            raise Unavailable(f"node {self._node.name} broke off: {_named(error)}") from error

    async def body(self, limit_bytes: int = 16 * 1024 * 1024) -> bytes:
        """Return the whole body. Raises Unavailable, HttpError above the limit."""
        content = bytearray()
        async for piece in self.chunks():
            content += piece
            if len(content) > limit_bytes:
                raise HttpError(502, "too_large", f"node {self._node.name} answered too much")
        return bytes(content)

    async def close(self) -> None:
        """Close it; the handler on the node is cancelled if it has not ended."""
        try:
            await self._response.aclose()
        finally:
            await self._node.released()


class ShortRequests:
    """Requests without a body that have short answers, over connections of their own.

    httpx takes a millisecond of CPU time for one, and every action in a session makes one.
    """

    def __init__(self, address: DoorAddress, authority: str) -> None:
        self._address = address
        self._head = f"host: {authority}\r\nauthorization: Bearer {address.secret}\r\n\r\n"
        self._idle: list[HttpConnection] = []
        self._closed = False

    async def answer(
        self, call: DoorCall, idle_seconds: float
    ) -> tuple[int, Mapping[bytes, bytes], bytes]:
        """Send a request; return status, headers and body. Raises NotConnected, BrokenOff, NotReached."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in call.headers.items())
        connection = await self._connection()
        try:
            request = f"{call.method} {call.target} HTTP/1.1\r\n{lines}{self._head}"
            connection.send(request.encode(), idle_seconds)
            await connection.head()
            content = bytearray()
            while (piece := await connection.piece()) is not None:
                content += piece
            return connection.status, connection.headers, bytes(content)
        finally:
            if connection.release() and not self._closed and len(self._idle) < IDLE_CONNECTIONS:
                self._idle.append(connection)
            else:
                connection.close()

    def close(self) -> None:
        """Close idle connections, and each other one after its request."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    async def _connection(self) -> HttpConnection:
        while self._idle:
            if not (kept := self._idle.pop()).closed:
                return kept
        loop, path = asyncio.get_running_loop(), self._address.socket_path
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                if path is not None:
                    return (await loop.create_unix_connection(HttpConnection, path))[1]
                host, _, port = self._address.address.rpartition(":")
                return (await loop.create_connection(HttpConnection, host.strip("[]"), int(port)))[
                    1
                ]
        except OSError as error:
            raise NotConnected(_named(error)) from error


async def ask_node(call: DoorCall, idle_seconds: float, node: NodeConnection) -> bytes:
    """Send a short request; return the body. Raises as `send_request`."""
    try:
        status, headers, content = await node.short.answer(call, idle_seconds)
    except (BrokenOff, NotReached) as error:
        raise Unavailable(f"node {node.name} does not answer ({error})") from error
    if DOOR_HEADER.encode() not in headers:
        raise Unavailable(_not_its_own(node))
    if (code := headers.get(_PROBLEM.encode())) is not None:
        raise _problem(status, code.decode(), content)
    return content


async def send_request(call: DoorCall, node: NodeConnection) -> DoorAnswer:
    """Send a request. Raises NotConnected, FormerSecret, ElsewhereNow, Unavailable, and what the node raises."""
    import httpx

    try:
        answer = await node.send(call)
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise NotConnected(_named(error)) from error
    except httpx.HTTPError as error:
        detail = (
            f"node {node.name} does not answer ({_named(error)}); whether it was done is unknown"
        )
        raise Unavailable(detail) from error
    if DOOR_HEADER not in answer.headers:
        await answer.close()
        raise Unavailable(_not_its_own(node))
    code = answer.headers.get(_PROBLEM)
    if code is not None:
        try:
            raise _problem(answer.status, code, await answer.body(_MAX_PROBLEM_BYTES))
        finally:
            await answer.close()
    return answer


async def open_socket(
    target: str, headers: Mapping[str, str], subprotocols: Sequence[str], node: NodeConnection
) -> NodeSocket:
    """Open a websocket. Raises as `send_request`."""
    options: dict[str, Any] = {
        "additional_headers": {**headers, "authorization": f"Bearer {node.address.secret}"},
        "subprotocols": [Subprotocol(each) for each in subprotocols] or None,
        "compression": None,
        "max_size": MAX_MESSAGE_BYTES,
        "open_timeout": CONNECT_SECONDS,
        "user_agent_header": None,
        "proxy": None,
    }
    path = node.address.socket_path
    if path is not None:
        options |= {"path": path, "unix": True}
    try:
        return await _Handshake(f"ws://{node.authority}{target}", **options)
    except InvalidStatus as error:
        answer = error.response
        code = answer.headers.get(_PROBLEM, "refused")
        raise _problem(answer.status_code, code, bytes(answer.body or b"")) from None
    except OSError as error:
        raise NotConnected(_named(error)) from error
    except InvalidHandshake as error:
        raise Unavailable(f"node {node.name} opens no websocket: {_named(error)}") from error


class _Handshake(connect):
    """A handshake that follows no redirect: the secret of a node is for that node."""

    def process_redirect(self, exc: Exception) -> Exception:
        """Return the error."""
        return exc


def _not_its_own(node: NodeConnection) -> str:
    return f"node {node.name} has too many connections, or its address is not its own"


def _named(error: Exception) -> str:
    return str(error) or type(error).__name__


def not_connected(node: NodeConnection, error: Exception) -> str:
    """Say that no connection was made."""
    return unreachable(node.name, node.address, _named(error))


def _problem(status: int, code: str, body: bytes) -> Exception:
    """Return the refusal of a node."""
    if code == "not_here":
        return ElsewhereNow()
    if status == 401:
        return FormerSecret()
    try:
        found = _problems.decode(body)
    except msgspec.DecodeError:
        found = _DoorProblem()
    return _refusal(status, code, found)


def _refusal(status: int, code: str, found: _DoorProblem) -> TangramError:
    """Return the error that a node raised, by its status (`scheduler.runtime.node.door.routes`)."""
    detail, pointer = found.detail, found.pointer
    if status == 404:
        return NotFound(detail, code=code)
    if status == 409:
        return Conflict(detail, pointer=pointer, code=code)
    if status == 410:
        return Gone(detail, pointer=pointer)
    if status == 422:
        return InvalidRequest(detail, pointer=pointer, code=code)
    if status in (429, 503):
        kind = CapacityError if status == 429 else Unavailable
        return kind(detail, retry_after_seconds=found.retry_after_seconds or 1.0)
    return StorageFull(detail) if status == 507 else HttpError(status, code, detail)
