"""Endpoints of files: checks, then a request to the node that holds the environment (`gateway.node_door`).

The first write into a trajectory places it, as its first action would, and makes its environment; nothing
else passes the scheduler loop, and no byte passes Redis. A small body is kept until the node has answered,
so that it can be sent again; a larger one is passed on as it arrives. One that the client has stored is named by its
digest (`endpoints.stored_transfers`), and read by the node.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec

from contract.receipts import RemovedFile, WrittenFile
from contract.requests import FileModeRequest, MoveRequest
from domain.errors import Conflict, Gone, InvalidRequest, NotFound
from domain.ids import TrajectoryKey, trajectory_key
from domain.ports.files import (
    MAX_ATTRIBUTE_BYTES,
    MAX_ENTRIES,
    MAX_UPLOAD_BYTES,
    FileFacts,
)
from domain.principals import Principal
from scheduler.runtime.gateway.context import GatewayContext
from scheduler.runtime.gateway.http import HttpRequest, HttpResponse, Send
from scheduler.runtime.gateway.node_connection import Body, DoorAnswer
from scheduler.runtime.gateway.relaying import relay
from scheduler.runtime.gateway.request_parsing import checked_name, decode, number

SMALL_BYTES: Final = 64 * 1024
#: An archive may be unpacked or a tree removed for so long without a sign of life.
TREE_SECONDS: Final = 600.0
#: Trajectories whose environment is known to exist.
_MOST_KNOWN: Final = 65_536
_MAX_PATH: Final = 4096
#: Longest name of an extended attribute, without its prefix.
_MAX_NAME: Final = 250
#: Headers of a node's answer that the client gets.
_PASSED_ON: Final = (
    "content-type", "content-length", "content-range", "accept-ranges", "last-modified",
)  # fmt: skip
#: What an environment wrote is shown by no browser as a page.
CAREFUL: Final = {"x-content-type-options": "nosniff", "content-disposition": "attachment"}

_moves = msgspec.json.Decoder(MoveRequest)
_modes = msgspec.json.Decoder(FileModeRequest)
_facts = msgspec.json.Decoder(FileFacts)
_attributes_of = msgspec.json.Decoder(dict[str, str])


class Files:
    """Handlers of the files of environments."""

    def __init__(self, context: GatewayContext) -> None:
        self._context = context
        self._known: OrderedDict[TrajectoryKey, None] = OrderedDict()

    async def put(
        self, request: HttpRequest, principal: Principal, name: str, path: str | None = None
    ) -> HttpResponse:
        """PUT /trajectories/{id}/files: the body becomes the file."""
        query = {
            "path": path_of(request, path), **_mode(request), **_attributes(request), **_stored(request),
        }  # fmt: skip
        project = await self._project(request, principal, name)
        await self._ensure(project, name)
        body, headers = await _upload(request)
        found = await self._ask(
            "PUT", "/files", project, name, query, body=body, headers=headers, seconds=TREE_SECONDS
        )
        size = _facts.decode(found).size_bytes
        return HttpResponse(201, WrittenFile(query["path"], size))

    async def get(
        self, request: HttpRequest, principal: Principal, name: str, path: str, send: Send
    ) -> None:
        """GET /trajectories/{id}/files/{path}: the content, or a range of it."""
        query = {"path": checked_path(path, "/path")}
        await self._relay(request, principal, name, "/files", query, send)

    async def get_at(
        self, request: HttpRequest, principal: Principal, name: str, send: Send
    ) -> None:
        """GET /trajectories/{id}/files: the same."""
        await self._relay(request, principal, name, "/files", {"path": path_of(request)}, send)

    async def delete(
        self, request: HttpRequest, principal: Principal, name: str, path: str | None = None
    ) -> HttpResponse:
        """DELETE /trajectories/{id}/files."""
        await request.body()
        query = {"path": path_of(request, path), **_flags(request, "recursive")}
        project = await self._project(request, principal, name)
        await self._ask("DELETE", "/files", project, name, query, seconds=TREE_SECONDS)
        return HttpResponse(200, RemovedFile(query["path"]))

    async def stat(self, request: HttpRequest, principal: Principal, name: str) -> HttpResponse:
        """GET /trajectories/{id}/stat."""
        query = {
            "path": path_of(request),
            **_flags(request, "follow"),
            **_flags(request, "attributes"),
        }
        project = await self._project(request, principal, name)
        return _json(200, await self._ask("GET", "/stat", project, name, query))

    async def set_mode(self, request: HttpRequest, principal: Principal, name: str) -> HttpResponse:
        """PATCH /trajectories/{id}/stat."""
        mode = decode(_modes, await request.body()).mode
        query = {"path": path_of(request), "mode": mode}
        project = await self._project(request, principal, name)
        return _json(200, await self._ask("PATCH", "/stat", project, name, query))

    async def entries(self, request: HttpRequest, principal: Principal, name: str) -> HttpResponse:
        """GET /trajectories/{id}/directory."""
        given = request.query()
        limit = int(number(given.get("limit") or str(MAX_ENTRIES), "limit", MAX_ENTRIES)) or 1
        query = {"path": path_of(request), "after": given.get("after", ""), "limit": str(limit)}
        query |= _flags(request, "attributes")
        project = await self._project(request, principal, name)
        return _json(200, await self._ask("GET", "/directory", project, name, query))

    async def make_directory(
        self, request: HttpRequest, principal: Principal, name: str
    ) -> HttpResponse:
        """PUT /trajectories/{id}/directory."""
        await request.body()
        query = {"path": path_of(request), **_mode(request), **_flags(request, "parents")}
        project = await self._project(request, principal, name)
        await self._ensure(project, name)
        return _json(201, await self._ask("PUT", "/directory", project, name, query))

    async def move(self, request: HttpRequest, principal: Principal, name: str) -> HttpResponse:
        """POST /trajectories/{id}/move."""
        payload = decode(_moves, await request.body())
        query = {
            "source": checked_path(payload.source, "/source"),
            "target": checked_path(payload.target, "/target"),
            "replace": "true" if payload.replace else "false",
        }
        project = await self._project(request, principal, name)
        return _json(200, await self._ask("POST", "/move", project, name, query))

    async def pack(self, request: HttpRequest, principal: Principal, name: str, send: Send) -> None:
        """GET /trajectories/{id}/tree."""
        await self._relay(request, principal, name, "/tree", {"path": path_of(request)}, send)

    async def unpack(self, request: HttpRequest, principal: Principal, name: str) -> HttpResponse:
        """PUT /trajectories/{id}/tree."""
        query = {"path": path_of(request), **_stored(request)}
        project = await self._project(request, principal, name)
        await self._ensure(project, name)
        body, headers = await _upload(request)
        found = await self._ask(
            "PUT", "/tree", project, name, query, body=body, headers=headers, seconds=TREE_SECONDS
        )
        return _json(201, found)

    async def _project(self, request: HttpRequest, principal: Principal, name: str) -> str:
        checked_name(name, "trajectory")
        return await self._context.project(request, principal)

    async def _ensure(self, project: str, name: str) -> None:
        """Place the trajectory and make its environment, unless that is done. Raises as `put` does."""
        key = trajectory_key(project, name)
        if key in self._known and self._context.tail.places.of(key) is not None:
            return
        await self._context.queries.open_files(project, name)
        self._known[key] = None
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)

    async def _ask(
        self,
        method: str,
        route: str,
        project: str,
        name: str,
        query: dict[str, str],
        *,
        body: Body | None = None,
        headers: dict[str, str] | None = None,
        seconds: float = 60.0,
    ) -> bytes:
        """Return the body of a node's answer."""
        async with to_node(
            self._context, project, name, method, route, query=query, headers=headers, body=body,
            idle_seconds=seconds,
        ) as answer:  # fmt: skip
            return await answer.body()

    async def _relay(
        self,
        request: HttpRequest,
        principal: Principal,
        name: str,
        route: str,
        query: dict[str, str],
        send: Send,
    ) -> None:
        """Pass a node's answer on as it arrives."""
        await request.body()
        project = await self._project(request, principal, name)
        asked = request.header(b"range")
        headers = {"range": asked} if asked else {}
        async with to_node(
            self._context, project, name, "GET", route, query=query, headers=headers
        ) as answer:
            await relay(answer, request, send, _shown(answer))


@asynccontextmanager
async def to_node(
    context: GatewayContext, project: str, name: str, method: str, route: str, **options: Any
) -> AsyncIterator[DoorAnswer]:
    """Send a request to the node of a trajectory as `NodeDoorClient.request`. Raises NotFound without an environment."""
    try:
        async with context.node_door.request(project, name, method, route, **options) as answer:
            yield answer
    except (Conflict, Gone) as error:
        raise _as_before(error, name) from error


def _as_before(error: InvalidRequest, name: str) -> InvalidRequest:
    """Return the error for a trajectory without an environment."""
    if isinstance(error, Gone):
        return NotFound(f"there is no open trajectory {name!r}: {error}")
    if error.code == "no_environment":
        return NotFound("nothing has been written or run in this trajectory yet")
    return error


def _shown(answer: DoorAnswer) -> dict[str, str]:
    found = {each: answer.headers[each] for each in _PASSED_ON if each in answer.headers}
    return {**found, **CAREFUL}


async def _upload(request: HttpRequest) -> tuple[Body, dict[str, str]]:
    """Return the body, whole where it is small, and the headers that it needs."""
    declared = request.header(b"content-length")
    if declared.isdigit() and int(declared) <= SMALL_BYTES:
        return await request.body(SMALL_BYTES), {}
    pieces: AsyncIterator[bytes] = request.chunks(MAX_UPLOAD_BYTES)
    return pieces, {"content-length": declared} if declared.isdigit() else {}


def _json(status: int, content: bytes) -> HttpResponse:
    return HttpResponse(status, raw=content)


def path_of(request: HttpRequest, short: str | None = None) -> str:
    """Return the path of a request. Raises InvalidRequest."""
    if short is not None:
        return checked_path(short, "/path")
    found = request.query().get("path")
    if found is None:
        raise InvalidRequest(
            "give the path in the query: ?path=/etc/hosts, or one relative to /workspace",
            pointer="?path",
        )
    return checked_path(found, "?path")


def checked_path(path: str, pointer: str) -> str:
    """Return a path. Raises InvalidRequest for one that no environment has."""
    climbs = ".." in path.split("/")
    if climbs or "\0" in path or len(path) > _MAX_PATH or (not path.isascii() and _is_broken(path)):
        raise InvalidRequest(
            f"{path[:128]!r}: give a path without '..' and of at most {_MAX_PATH} characters",
            pointer=pointer,
            code="path_outside_workspace",
        )
    return path


def _is_broken(path: str) -> bool:
    """Say whether a path has bytes that are no text."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return True
    return False


def _stored(request: HttpRequest) -> dict[str, str]:
    """Return the digest of a content that the client has stored; the node checks it."""
    text = request.query().get("stored")
    return {} if text is None else {"stored": text}


def _mode(request: HttpRequest) -> dict[str, str]:
    text = request.query().get("mode")
    if text is None:
        return {}
    if not (1 <= len(text) <= 4 and set(text) <= set("01234567")):
        raise InvalidRequest(f"mode={text!r} is not octal, as 0644", pointer="?mode")
    return {"mode": text}


def _attributes(request: HttpRequest) -> dict[str, str]:
    """Return the extended attributes that a write sets. Raises InvalidRequest."""
    text = request.query().get("attributes")
    if text is None:
        return {}
    try:
        found = _attributes_of.decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        found = {"": ""}
    size = sum(len(each.encode()) for pair in found.items() for each in pair)
    wrong = any(not name or "\0" in name or name.startswith("overlay.") for name in found)
    if wrong or size > MAX_ATTRIBUTE_BYTES or any(len(n.encode()) > _MAX_NAME for n in found):
        raise InvalidRequest(
            f'give a JSON object as {{"author": "me"}}, of at most {MAX_ATTRIBUTE_BYTES} bytes; no name begins'
            " with overlay.",
            pointer="?attributes",
        )
    return {"attributes": text}


def _flags(request: HttpRequest, name: str) -> dict[str, str]:
    text = request.query().get(name)
    if text is None:
        return {}
    if text not in ("true", "false"):
        raise InvalidRequest(f"{name}={text!r}: give true or false", pointer=f"?{name}")
    return {name: text}
