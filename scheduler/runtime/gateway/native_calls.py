"""Native calls of facades: the calls of ``/api/v1``, made in the web process for a client of another protocol.

    native = port.native(request, principal)
    await native.open("trj-1", task="e2b", environment={"image": "python"})
    view = await native.run({"task": "e2b", "trajectory": "trj-1", "kind": "exec", "exec": {…}})
    async with native.download("trj-1", "/etc/hosts") as file:
        async for piece in file.chunks: ...

Rules
1. A call passes the handler, the checks and the scope of its native route, and raises its errors; those of the node
   (no such file, a session that ended) are the same `NotFound`, `Conflict` and `InvalidRequest`. What a facade can do,
   the same token can do over ``/api/v1``.
2. A call acts for the principal, in the project that the query of the facade's request names, else in that of
   the token. An action records the facade as its ``door``.
3. `run` cancels its action when the client disconnects; `start` leaves it running.
4. Requests, responses and names are those of `contract`; a facade translates them and holds no state.
5. The body of the facade's request must have been read before a call, except the body that `upload` streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

import msgspec
import redis

from contract.process_routes import ProcessList
from contract.receipts import (
    AcceptedAction,
    ForkedTrajectories,
    TrajectoryDetails,
    TrajectoryReceipt,
)
from contract.requests import DOOR, ActionRequest
from contract.responses import ActionResponse
from contract.routes import ROUTES, SOCKETS, Route
from contract.session_routes import SessionList
from domain.action import Action
from domain.manifest import read
from domain.ports.files import DirectoryListing, FileFacts
from domain.ports.processes import ProgramFacts
from domain.ports.sessions import SessionFacts
from domain.ports.watching import WatchEvent
from domain.principals import Principal, Scope
from scheduler.runtime.gateway.context import GatewayContext
from scheduler.runtime.gateway.door_keys import DIGEST_BYTES, DOOR_KEY, DoorKey
from scheduler.runtime.gateway.http import (
    HttpError,
    HttpRequest,
    HttpResponse,
    Send,
    channel_of,
    encode_json,
)
from scheduler.runtime.gateway.native_streams import (
    NativeStream,
    OutputPiece,
    piece_of,
    streamed,
)
from scheduler.runtime.gateway.node_connection import NodeSocket
from scheduler.runtime.gateway.request_parsing import checked_name
from scheduler.runtime.gateway.route_table import Handler
from scheduler.runtime.gateway.session_checks import checked_session, session_refusal
from scheduler.runtime.redis.confirmation import unavailable

__all__ = ["NativeCalls", "NativeStream", "OutputPiece"]

T = TypeVar("T")
#: Longest wait of one native request; longer ones repeat it.
_WAIT_SECONDS: Final = 60.0
#: Headers of a client's request that belong to its body or its protocol, not to the native call.
_DROPPED: Final = (
    b"authorization", b"content-encoding", b"content-length", b"content-type", b"idempotency-key",
    b"last-event-id", b"prefer", b"range",
)  # fmt: skip

#: Submits an action and returns it finished, cancelled when its client disconnects or after so many seconds.
Complete = Callable[[HttpRequest, Principal, Action, float | None, str], Awaitable[ActionResponse]]

_routes: Final = {route.operation: route for route in (*ROUTES, *SOCKETS)}


def _asking(attributes: bool) -> dict[str, str]:
    return {"attributes": "true"} if attributes else {}


class NativeCalls:
    """The native calls for one request of a client."""

    def __init__(
        self,
        context: GatewayContext,
        handlers: Mapping[str, Handler],
        complete: Complete,
        door: str,
        request: HttpRequest,
        principal: Principal,
    ) -> None:
        self._context = context
        self._complete = complete
        self._handlers = handlers
        self.door = door
        self._request = request
        self._principal = principal

    # Trajectories

    async def open(self, trajectory: str, task: str, **members: Any) -> TrajectoryReceipt:
        """Declare a trajectory; ``members`` as in `TrajectoryRequest`. Raises Conflict, InvalidRequest."""
        body = {"id": trajectory, "task": task, **members}
        return await self._json(TrajectoryReceipt, "trajectories_open", body=self.owned(body))

    async def trajectory(self, name: str) -> TrajectoryDetails:
        """Return the state of a trajectory. Raises NotFound."""
        self._check(Scope.READ)
        return await self._context.queries.trajectory(await self.project(), name)

    async def trajectories(self) -> list[TrajectoryReceipt]:
        """Return the open trajectories of this facade in the project of the request, by arrival."""
        return await self._context.queries.trajectories(await self.project(), self.door)

    async def renew(self, trajectory: str, **members: Any) -> TrajectoryReceipt:
        """Move the end of a trajectory, pause or resume it; ``members`` as in `TrajectoryRenewRequest`. Raises NotFound, Conflict."""
        return await self._json(TrajectoryReceipt, "trajectories_renew", trajectory, body=members)

    async def finish(self, trajectory: str) -> TrajectoryReceipt:
        """Cancel its actions and remove its environment. Raises NotFound."""
        return await self._json(TrajectoryReceipt, "trajectories_finish", trajectory)

    async def fork(self, source: str, names: list[str], **members: Any) -> ForkedTrajectories:
        """Open forks of a trajectory. Raises NotFound, Conflict, CapacityError."""
        body = self.owned({"from": source, "names": names, **members})
        return await self._json(ForkedTrajectories, "trajectories_open", body=body)

    async def place(self, trajectory: str) -> None:
        """Place a trajectory, and make its environment. Raises NotFound, Conflict, CapacityError."""
        await self._context.queries.open_files(await self.project(), trajectory)

    # Actions

    async def run(
        self,
        members: Mapping[str, Any],
        seconds: float | None = None,
        *,
        key: str = "",
        ask_session: bool = True,
    ) -> ActionResponse:
        """Submit an action and return it finished; ``members`` as in `ActionRequest`.

        ``key``: names a request of the door; a repetition gets the action of the first one. ``ask_session``: refuse
        now what the session does not take; else the node does. Longer than ``seconds``: HttpError 504, and the
        action is cancelled. Raises ClientGone, after which it is cancelled too; and what a submission raises.
        """
        self._check_scope("actions_submit")
        payload = read(ActionRequest, self.owned(members))
        context, principal = self._context, self._principal
        action = await context.admitted(
            lambda: context.admission.action(payload, principal, self.door)
        )
        if ask_session and (refusal := await session_refusal(context.node_door, action)):
            raise refusal
        return await self._complete(self._request, principal, action, seconds, key)

    async def start(self, members: Mapping[str, Any]) -> AcceptedAction:
        """Submit an action. Raises InvalidRequest, NotFound, Conflict, CapacityError."""
        return await self._json(AcceptedAction, "actions_submit", body=self.owned(members))

    async def wait(self, action_id: str, seconds: float | None = None) -> ActionResponse:
        """Return an action when it is finished, or after ``seconds``. Raises NotFound, ClientGone."""
        loop = asyncio.get_running_loop()
        deadline = None if seconds is None else loop.time() + seconds
        while True:
            left = _WAIT_SECONDS if deadline is None else max(0.0, deadline - loop.time())
            query = {"wait": str(min(left, _WAIT_SECONDS))}
            view = await self._json(ActionResponse, "actions_retrieve", action_id, query=query)
            if view.outcome is not None or (deadline is not None and loop.time() >= deadline):
                return view

    async def cancel(self, action_id: str, reason: str = "cancelled by request") -> None:
        """Cancel an action; one that is finished is not changed. Raises NotFound."""
        await self.call("actions_cancel", action_id, body={"reason": reason})

    async def follow(
        self, action_id: str, after: str = "", *, live: bool = True
    ) -> AsyncIterator[OutputPiece]:
        """Yield the output of an action to its end, without ``live`` what there is now. Raises NotFound, ClientGone."""
        query = {"after": after} if live else {"after": after, "follow": "false"}
        async with self.stream("actions_stream", action_id, query=query) as stream:
            unread = b""
            async for piece in stream.chunks:
                *complete, unread = (unread + piece).split(b"\n\n")
                for event in complete:
                    if (shown := piece_of(event)) is not None:
                        yield shown

    # Sessions and processes

    async def open_session(self, trajectory: str, **members: Any) -> SessionFacts:
        """Open a session; ``members`` as in `SessionRequest`. Raises Conflict, InvalidRequest, NotFound."""
        return await self._json(SessionFacts, "sessions_open", trajectory, body=members)

    async def sessions(self, trajectory: str) -> list[SessionFacts]:
        """Return the sessions of a trajectory, ended ones too. Raises NotFound."""
        return (await self._json(SessionList, "sessions_list", trajectory)).sessions

    async def session(self, trajectory: str, name: str) -> SessionFacts:
        """Return a session. Raises NotFound; its text has the exit status once the session has ended."""
        return await self._json(SessionFacts, "sessions_retrieve", trajectory, name)

    async def send_input(self, trajectory: str, session: str, data: bytes) -> SessionFacts:
        """Send input to a session. Raises NotFound, Conflict."""
        return await self._json(SessionFacts, "sessions_input", trajectory, session, raw=data)

    async def interrupt(self, trajectory: str, session: str, by: str = "SIGINT") -> SessionFacts:
        """Send SIGINT, SIGTERM or SIGKILL to the foreground of a session. Raises NotFound."""
        query = {"signal": by}
        return await self._json(
            SessionFacts, "sessions_interrupt", trajectory, session, query=query
        )

    async def resize(self, trajectory: str, session: str, rows: int, columns: int) -> SessionFacts:
        """Change the size of a terminal. Raises NotFound, Conflict."""
        size = {"rows": rows, "columns": columns}
        return await self._json(SessionFacts, "sessions_resize", trajectory, session, body=size)

    async def close_session(self, trajectory: str, session: str) -> SessionFacts:
        """End a session. Raises NotFound."""
        return await self._json(SessionFacts, "sessions_close", trajectory, session)

    @asynccontextmanager
    async def attach(
        self, trajectory: str, session: str, **query: str
    ) -> AsyncIterator[NodeSocket]:
        """Attach a terminal: binary messages are input and output. Raises NotFound, Unavailable."""
        self._check_scope("sessions_attach")
        path = f"/sessions/{checked_session(session)}/attach"
        name = checked_name(trajectory, "trajectory")
        async with self._context.node_door.websocket(
            await self.project(), name, path, query=urlencode(query)
        ) as socket:
            yield socket

    async def processes(self, trajectory: str) -> list[ProgramFacts]:
        """Return the programs of an environment. Raises NotFound."""
        return (await self._json(ProcessList, "processes_list", trajectory)).processes

    async def end_process(self, trajectory: str, pid: int, by: str = "SIGKILL") -> ProgramFacts:
        """End a program by SIGKILL, or send it SIGTERM. Raises NotFound."""
        query = {"signal": by}
        return await self._json(ProgramFacts, "processes_end", trajectory, str(pid), query=query)

    # Files: paths are absolute inside the environment, or relative to its workspace

    async def put(self, trajectory: str, path: str, content: bytes, mode: str = "") -> None:
        """Write a file, and the directories before it. Raises InvalidRequest, Conflict, StorageFull."""
        query = {"path": path} | ({"mode": mode} if mode else {})
        await self.call("files_put_at", trajectory, query=query, raw=content)

    async def upload(
        self,
        trajectory: str,
        path: str,
        pieces: AsyncIterator[bytes],
        attributes: Mapping[str, str] | None = None,
    ) -> None:
        """Write a file from ``pieces`` as they arrive, with extended ``attributes``. Raises as `put`."""
        query = {"path": path}
        if attributes:
            query["attributes"] = encode_json(attributes).decode()
        await self.call("files_put_at", trajectory, query=query, pieces=pieces)

    async def get(self, trajectory: str, path: str, limit_bytes: int) -> bytes:
        """Return a file. Raises NotFound, InvalidRequest for a directory, HttpError 413 above the limit."""
        async with self.download(trajectory, path) as file:
            content = bytearray()
            async for piece in file.chunks:
                content += piece
                if len(content) > limit_bytes:
                    raise HttpError(413, "too_large", f"{path} is larger than {limit_bytes} bytes")
            return bytes(content)

    def download(self, trajectory: str, path: str) -> AbstractAsyncContextManager[NativeStream]:
        """Read a file piece by piece. Raises as `get`."""
        return self.stream("files_get_at", trajectory, query={"path": path})

    async def stat(
        self, trajectory: str, path: str, *, follow: bool = True, attributes: bool = False
    ) -> FileFacts:
        """Return what the directory records of a file. Raises NotFound."""
        query = {"path": path, "follow": "true" if follow else "false"} | _asking(attributes)
        return await self._json(FileFacts, "files_stat", trajectory, query=query)

    async def entries(
        self, trajectory: str, path: str, *, attributes: bool = False
    ) -> list[FileFacts]:
        """Return all entries of a directory. Raises NotFound, InvalidRequest for a file."""
        entries: list[FileFacts] = []
        after = ""
        while True:
            query = {"path": path, **_asking(attributes)} | ({"after": after} if after else {})
            page = await self._json(DirectoryListing, "files_list", trajectory, query=query)
            entries += page.entries
            if page.next is None:
                return entries
            after = page.next

    async def make_directory(
        self, trajectory: str, path: str, *, parents: bool = True
    ) -> FileFacts:
        """Make a directory. Raises Conflict, for one that exists only without ``parents``."""
        query = {"path": path, "parents": "true" if parents else "false"}
        return await self._json(FileFacts, "files_make_directory", trajectory, query=query)

    async def move(self, trajectory: str, source: str, target: str, *, replace: bool) -> FileFacts:
        """Rename a file or directory. Raises NotFound, Conflict."""
        body = {"source": source, "target": target, "replace": replace}
        return await self._json(FileFacts, "files_move", trajectory, body=body)

    async def remove(self, trajectory: str, path: str, *, recursive: bool = False) -> None:
        """Delete a file or directory. Raises NotFound, Conflict for a directory that is not empty."""
        query = {"path": path, "recursive": "true" if recursive else "false"}
        await self.call("files_delete_at", trajectory, query=query)

    async def unpack(self, trajectory: str, path: str, archive: bytes) -> None:
        """Unpack a tar archive into a directory. Raises InvalidRequest, StorageFull."""
        await self.call("files_unpack", trajectory, query={"path": path}, raw=archive)

    def pack(self, trajectory: str, path: str) -> AbstractAsyncContextManager[NativeStream]:
        """Read a file or directory as a tar archive. Raises NotFound."""
        return self.stream("files_pack", trajectory, query={"path": path})

    # Watchers of directories, which the node keeps

    async def watch(self, trajectory: str, path: str, *, recursive: bool = False) -> str:
        """Watch a directory; return the id of the watcher. Raises NotFound, InvalidRequest, CapacityError."""
        query = {"path": path, "recursive": "true" if recursive else "false"}
        found = await self._at_node("POST", trajectory, "/watchers", query)
        return str(msgspec.json.decode(found)["id"])

    async def watched(
        self, trajectory: str, watcher: str, seconds: float = 0.0
    ) -> tuple[WatchEvent, ...]:
        """Return the changes since the call before, after ``seconds`` none. Raises NotFound, CapacityError."""
        query = {"wait": f"{seconds:g}"}
        found = await self._at_node("GET", trajectory, f"/watchers/{watcher}", query)
        return msgspec.json.decode(found, type=tuple[WatchEvent, ...])

    async def unwatch(self, trajectory: str, watcher: str) -> None:
        """End a watcher. Raises NotFound."""
        await self._at_node("DELETE", trajectory, f"/watchers/{watcher}", {})

    async def _at_node(
        self, method: str, trajectory: str, path: str, query: Mapping[str, str]
    ) -> bytes:
        """Return the answer of the node of a trajectory. Raises HttpError 403 without the scope to read."""
        if not self._principal.may(Scope.READ):
            raise HttpError(403, "missing_scope", f"this needs a token with scope {Scope.READ}")
        async with self._context.node_door.request(
            await self.project(), trajectory, method, path, query=query
        ) as answer:
            return await answer.body()

    # Any other call

    async def project(self) -> str:
        """Return the project of the request. Raises NotFound."""
        return await self._context.project(self._request, self._principal)

    async def remembered(self, key: str) -> bytes | None:
        """Return the receipts of the submission with a key of this facade; None without one. Raises Unavailable."""
        name = DoorKey(self.door, key).name(self._context.keys, await self.project())
        try:
            stored = await self._context.confirmed.call("GET", name)
        except redis.RedisError as error:
            raise unavailable(error) from None
        return stored[DIGEST_BYTES:] if isinstance(stored, bytes) else None

    async def call(
        self,
        operation: str,
        *parameters: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        raw: bytes = b"",
        pieces: AsyncIterator[bytes] | None = None,
        key: DoorKey | None = None,
    ) -> HttpResponse:
        """Return the answer of a native route by its operation; ``key``: of a submission. Raises what its handler raises."""
        inner = self._inner(
            operation, query or {}, raw if body is None else encode_json(body), pieces
        )
        if key is not None:
            inner.scope[DOOR_KEY] = key
        answer = await self._handlers[operation](inner, self._principal, *parameters)
        assert answer is not None, f"{operation} streams"
        return answer

    @asynccontextmanager
    async def stream(
        self, operation: str, *parameters: str, query: Mapping[str, str] | None = None
    ) -> AsyncIterator[NativeStream]:
        """Make a call of a route that streams. Leaving the context ends it. Raises what its handler raises."""

        async def answer(send: Send) -> None:
            inner = self._inner(operation, query or {}, b"", None)
            await self._handlers[operation](inner, self._principal, *parameters, send)

        async with streamed(answer) as stream:
            yield stream

    async def _json(
        self,
        kind: type[T],
        operation: str,
        *parameters: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        raw: bytes = b"",
    ) -> T:
        answer = await self.call(operation, *parameters, query=query, body=body, raw=raw)
        return msgspec.json.decode(answer.content, type=kind)

    def _check_scope(self, operation: str) -> Route:
        """Return the native route of a call. Raises HttpError 403 without its scope."""
        route = _routes[operation]
        if route.scope is not None:
            self._check(route.scope)
        return route

    def _check(self, scope: Scope) -> None:
        if not self._principal.may(scope):
            raise HttpError(403, "missing_scope", f"this needs a token with scope {scope}")

    def owned(self, members: Mapping[str, Any]) -> dict[str, Any]:
        """Return the members of an object with the project that the query of the client's request names."""
        named = self._request.query().get("project")
        return {"project": named, **members} if named else dict(members)

    def _inner(
        self,
        operation: str,
        query: Mapping[str, str],
        body: bytes,
        pieces: AsyncIterator[bytes] | None,
    ) -> HttpRequest:
        """Return the native request of a call. Raises HttpError 403 without its scope."""
        route, outer = self._check_scope(operation), self._request
        named = outer.query().get("project")
        headers = {name: value for name, value in outer.headers.items() if name not in _DROPPED}
        if pieces is None:
            headers[b"content-length"] = b"%d" % len(body)
        scope = {
            **outer.scope,
            "method": route.method,
            "path": route.path,
            "query_string": urlencode({**({"project": named} if named else {}), **query}).encode(),
            "headers": list(headers.items()),
            DOOR: self.door,
        }
        inner = HttpRequest(scope, channel_of(body, pieces, outer.receive))
        inner.id = outer.id
        return inner
