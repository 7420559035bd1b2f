"""Objects over the node door: what a node puts into the object store, for a client that reads it there by a signed URL.

    POST /objects    the file at ``path``, or with ``tree`` the archive of what is there
    POST /results    the stored result of an action, by its digest; any node with the folder of bodies can do it

What is smaller than ``least_bytes`` is refused, and the archive of a small tree is the answer itself: to pack it again costs more than to send it.
Else the answer is the digest, by which the client's web process signs the URL.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final, cast

import msgspec

from domain.bodies import StoredBody
from domain.ports import Driver, EnvironmentFiles, FileServing
from scheduler.runtime.node.door.files import ByteRange, files_of, pieces_of, project_of
from scheduler.runtime.node.door.routes import DoorRequest, DoorResponse, DoorRoutes
from scheduler.runtime.object_store.contents import existing, keep, keep_made, small
from scheduler.runtime.object_store.objects import FILES, ContentDigest, object_key

#: Archives up to this size are answers. They are whole in the memory of node and web process.
SMALL_ARCHIVE_BYTES: Final = 1024 * 1024


def add_routes(routes: DoorRoutes, drivers: Sequence[Driver]) -> None:
    """Add the routes: of files, where a driver of this node serves them."""
    serving = next((driver for driver in drivers if isinstance(driver, FileServing)), None)
    objects = ObjectHandlers(routes, serving)
    if serving is not None:
        routes.add("POST", "/objects", objects.of_files)
    routes.add("POST", "/results", objects.of_result)


class ObjectHandlers:
    """Handlers that put a content of this node into the store."""

    def __init__(self, routes: DoorRoutes, driver: FileServing | None) -> None:
        self._routes, self._driver = routes, driver

    async def of_files(self, request: DoorRequest) -> DoorResponse:
        """POST /objects. Raises Conflict for what is small, or without a store."""
        assert self._driver is not None
        store, path = existing(self._routes.objects), request.query.get("path", "")
        files, least = await files_of(self._driver, request), _least(request)
        make: Callable[[], AsyncIterator[bytes]]
        if request.query.get("tree") == "true":
            make = partial(_archive, files, path)
            small_one = await _whole(_archive(files, path), min(least - 1, SMALL_ARCHIVE_BYTES))
            if small_one is not None:
                return DoorResponse(200, small_one, {"content-type": "application/x-tar"})
        else:
            size = (await asyncio.to_thread(files.stat, path)).size_bytes
            if size < least:
                raise small(repr(path), size)
            make = partial(_file, files, path)
        return _answer(await keep_made(store, FILES, project_of(request), make, least_bytes=least))

    async def of_result(self, request: DoorRequest) -> DoorResponse:
        """POST /results. Raises BodyLost."""
        store, query = existing(self._routes.objects), request.query
        stored = StoredBody(query["sha256"], int(query["size_bytes"]))
        key = object_key(FILES, query["project"], stored.sha256)
        await keep(store, key, stored.bytes, partial(self._routes.bodies.pieces, stored))
        return _answer(ContentDigest(stored.sha256, stored.bytes))


async def _whole(pieces: AsyncGenerator[bytes, None], most_bytes: int) -> bytes | None:
    """Return a content; None when it is larger."""
    content = bytearray()
    async with aclosing(pieces):
        async for piece in pieces:
            content += piece
            if len(content) > most_bytes:
                return None
    return bytes(content)


def _least(request: DoorRequest) -> int:
    return int(request.query.get("least_bytes", "0"))


def _answer(content: ContentDigest) -> DoorResponse:
    return DoorResponse(201, msgspec.json.encode(content), {"content-type": "application/json"})


async def _file(files: EnvironmentFiles, path: str) -> AsyncIterator[bytes]:
    reader = await asyncio.to_thread(files.open_file, path)
    async for piece in pieces_of(reader, ByteRange(0, reader.facts.size_bytes)):
        yield piece


async def _archive(files: EnvironmentFiles, path: str) -> AsyncGenerator[bytes, None]:
    async with aclosing(cast("Any", await files.pack(path))) as pieces:
        async for piece in pieces:
            yield piece
