"""Routes of a node door: requests, responses, websockets, and the table that finds their handlers.

Rules
1. A handler reads the body with `DoorRequest.chunks` or `body`. It waits for each piece, so a slow handler slows
   the client down; the same holds for a body that a handler yields.
2. A handler is cancelled when the web process closes the connection, as it does when its client disconnects;
   it notices after the body was read.
3. The handler of a websocket calls `AsgiSocket.accept`, and ends by returning; `PeerGone` may leave it.
4. A handler raises `TangramError`s or `DoorError`; a worker that does not hold the environment raises
   `NotHere` before it reads the body.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import parse_qsl, unquote

from contract import door_address
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
from domain.ids import TrajectoryKey
from scheduler.runtime.asgi_socket import AsgiSocket
from scheduler.runtime.body_store import BodyStore
from scheduler.runtime.object_store.objects import ObjectStore

#: Header of a request: the key of its trajectory, percent-encoded.
TRAJECTORY_HEADER: Final = b"tangram-trajectory"
#: Header of a response: it is the problem of this code, not what a handler returned.
PROBLEM_HEADER: Final = b"tangram-problem"
#: Header of every response of a door: a full server, or another one, does not send it.
DOOR_HEADER: Final = door_address.DOOR_HEADER.encode()
NOT_HERE: Final = "not_here"
_STATUSES: Final = ((NotFound, 404), (Conflict, 409), (Gone, 410), (InvalidRequest, 422))


class DoorError(TangramError):
    """A refusal with an HTTP status that no other error has, such as 502."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code


class NotHere(NotFound):
    """This node does not hold the environment of the trajectory."""

    def __init__(self, trajectory: TrajectoryKey) -> None:
        name = trajectory.partition("/")[2]
        super().__init__(f"trajectory {name!r} has no environment on this node", code=NOT_HERE)


class BodySource(Protocol):
    """The body of a request, piece by piece."""

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the pieces. Raises PeerGone."""


class DoorRequest:
    """One request of a web process."""

    def __init__(self, scope: Mapping[str, Any], body: BodySource) -> None:
        self.method: str = scope.get("method", "GET")
        self.path: str = scope["path"]
        #: The raw query, for handlers that forward it.
        self.query_string: bytes = scope.get("query_string", b"")
        self.raw_headers: list[tuple[bytes, bytes]] = list(scope["headers"])
        self.headers: dict[bytes, bytes] = dict(self.raw_headers)
        #: Project and name; empty for routes without a trajectory.
        self.trajectory = TrajectoryKey(unquote(self.headers.get(TRAJECTORY_HEADER, b"").decode()))
        #: Parameters of the path, decoded.
        self.parameters: dict[str, str] = {}
        self._body = body

    @property
    def query(self) -> dict[str, str]:
        """The query; of a repeated parameter the last value."""
        return dict(parse_qsl(self.query_string.decode("latin-1"), keep_blank_values=True))

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. Raises PeerGone."""
        return self._body.chunks()

    async def body(self, limit_bytes: int) -> bytes:
        """Return the body. Raises DoorError 413 above the limit, PeerGone."""
        content = bytearray()
        async for chunk in self._body.chunks():
            content += chunk
            if len(content) > limit_bytes:
                raise DoorError(413, "too_large", f"the body is larger than {limit_bytes} bytes")
        return bytes(content)


@dataclass
class DoorResponse:
    """What a handler answers: complete bytes, or an iterator of pieces as they are made."""

    status: int = 200
    body: bytes | AsyncIterator[bytes] = b""
    headers: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[[DoorRequest], Awaitable[DoorResponse]]
SocketHandler = Callable[[DoorRequest, AsgiSocket], Awaitable[None]]
#: Method of websocket routes in the table.
_SOCKET: Final = "websocket"


class DoorMatch(NamedTuple):
    """A handler, and the parameters in the path of the request."""

    handler: Any
    parameters: dict[str, str]


class DoorRoutes:
    """Table of the routes of one node."""

    def __init__(self, objects: ObjectStore | None = None, bodies: BodyStore | None = None) -> None:
        """``objects``, ``bodies``: the stores that handlers may use."""
        self.objects = objects
        self.bodies = bodies or BodyStore(None)
        self._routes: list[tuple[str, re.Pattern[str], Any]] = []
        self._short: list[tuple[str, re.Pattern[str]]] = []

    def add(self, method: str, template: str, handler: Handler, *, short: bool = False) -> None:
        """Bind ``handler``; ``{path}`` takes the rest of the path, any other parameter a segment.

        Method ``*`` takes all methods. ``short``: the handler waits for nothing, so the end of the connection is not
        watched meanwhile.
        """
        pattern = _pattern(template)
        self._routes.append((method, pattern, handler))
        if short:
            self._short.append((method, pattern))

    def is_short(self, method: str, path: str) -> bool:
        """Return whether the handler of a request waits for nothing."""
        return any(method == served and pattern.fullmatch(path) for served, pattern in self._short)

    def add_socket(self, template: str, handler: SocketHandler) -> None:
        """Bind the handler of a websocket."""
        self._routes.append((_SOCKET, _pattern(template), handler))

    def find(self, method: str, path: str) -> DoorMatch:
        """Return the handler of a request. Raises NotFound for a path without one."""
        for served, pattern, handler in self._routes:
            if served == method or (served == "*" and method != _SOCKET):
                found = pattern.fullmatch(path)
                if found is not None:
                    return DoorMatch(handler, found.groupdict())
        raise NotFound(f"this node worker does not serve {method} {path}", code="no_route")

    def find_socket(self, path: str) -> DoorMatch:
        """Return the handler of a websocket. Raises NotFound."""
        return self.find(_SOCKET, path)


def _pattern(template: str) -> re.Pattern[str]:
    named = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", template.replace("{path}", "(?P<path>.*)"))
    return re.compile(named, re.DOTALL)


def status_of(error: TangramError) -> tuple[int, str]:
    """Return the HTTP status and the code of an error."""
    if isinstance(error, DoorError):
        return error.status, error.code
    if isinstance(error, InvalidRequest):
        return next(status for kind, status in _STATUSES if isinstance(error, kind)), error.code
    if isinstance(error, StorageFull):
        return 507, "disk_full"
    if isinstance(error, CapacityError):
        return (503 if isinstance(error, Unavailable) else 429), "unavailable"
    return 500, "internal"
