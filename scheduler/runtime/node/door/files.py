"""Files over the node door: the routes of `contract.file_routes` as the node serves them.

All parameters are in the query. A small file is read or written by one call in a thread, a larger one piece by
piece; each piece waits for its reader or writer.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from email.utils import format_datetime
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from domain.errors import InvalidRequest
from domain.ports import Driver, EnvironmentFiles, FileFacts, FileReader, FileServing, FileWriter
from domain.ports.files import MAX_ENTRIES, MAX_UPLOAD_BYTES, FileGuarding
from scheduler.runtime.node.door.routes import (
    DoorError,
    DoorRequest,
    DoorResponse,
    DoorRoutes,
    NotHere,
)
from scheduler.runtime.object_store.contents import existing, stored_content
from scheduler.runtime.object_store.objects import FILES, ObjectStore, object_key

#: Files up to this size are read or written at once.
SMALL_BYTES: Final = 64 * 1024
PIECE_BYTES: Final = 256 * 1024
_RANGE: Final = re.compile(r"bytes=(\d*)-(\d*)")
_TAR: Final = {"content-type": "application/x-tar"}
_named: Final = msgspec.json.Decoder(dict[str, str])

T = TypeVar("T")


def add_routes(routes: DoorRoutes, drivers: Sequence[Driver]) -> None:
    """Add the routes, where a driver of this node serves files."""
    serving = next((driver for driver in drivers if isinstance(driver, FileServing)), None)
    if serving is None:
        return
    files = FileHandlers(serving, routes.objects)
    routes.add("GET", "/files", files.read)
    routes.add("PUT", "/files", files.write)
    routes.add("DELETE", "/files", files.remove)
    routes.add("GET", "/stat", files.stat)
    routes.add("PATCH", "/stat", files.set_mode)
    routes.add("GET", "/directory", files.entries)
    routes.add("PUT", "/directory", files.make_directory)
    routes.add("POST", "/move", files.move)
    routes.add("GET", "/tree", files.pack)
    routes.add("PUT", "/tree", files.unpack)


async def files_of(driver: FileServing, request: DoorRequest) -> EnvironmentFiles:
    """Return the files of the request's trajectory. Raises NotHere."""
    try:
        return await driver.files(request.trajectory)
    except InvalidRequest as error:
        if error.code == "not_here":
            raise NotHere(request.trajectory) from None
        raise


def project_of(request: DoorRequest) -> str:
    """Return the project of the request's trajectory."""
    return request.trajectory.partition("/")[0]


class ByteRange(NamedTuple):
    """Bytes of a file: from ``first`` up to and without ``end``."""

    first: int
    end: int


def byte_range(header: str, size_bytes: int) -> ByteRange | None:
    """Return the range that a ``Range`` header asks for; None: the whole file (RFC 9110, 14.2).

    Raises DoorError 416 when the file has none of it.
    """
    found = _RANGE.fullmatch(header.replace(" ", ""))
    if found is None or not (found[1] or found[2]):
        return None  # several ranges, or another unit: the whole file answers them
    if not found[1]:
        asked = ByteRange(max(0, size_bytes - int(found[2])), size_bytes)
    else:
        last = int(found[2]) + 1 if found[2] else size_bytes
        if last <= int(found[1]) and found[2]:
            return None
        asked = ByteRange(int(found[1]), min(last, size_bytes))
    if asked.first >= asked.end:
        raise DoorError(
            416, "range", f"the file has {size_bytes} bytes; {header!r} has none of them"
        )
    return asked


class FileHandlers:
    """Handlers of files."""

    def __init__(self, driver: FileServing, objects: ObjectStore | None) -> None:
        self._driver = driver
        self._objects = objects

    async def _of(self, request: DoorRequest) -> EnvironmentFiles:
        return await files_of(self._driver, request)

    async def _writable(self, request: DoorRequest) -> EnvironmentFiles:
        """Return the files to change. Raises Conflict while they must not be changed."""
        files = await self._of(request)
        if isinstance(self._driver, FileGuarding):
            self._driver.check_writable(request.trajectory)
        return files

    async def read(self, request: DoorRequest) -> DoorResponse:
        """GET /files: the content, or a range of it."""
        files, path = await self._of(request), request.query.get("path", "")
        reader, first = await asyncio.to_thread(_opened, files, path)
        try:
            size = reader.facts.size_bytes
            asked = byte_range(request.headers.get(b"range", b"").decode("latin-1"), size)
            headers = {
                "content-type": "application/octet-stream",
                "accept-ranges": "bytes",
                "last-modified": format_datetime(reader.facts.modified_at, usegmt=True),
            }
            status, part = 200, ByteRange(0, size)
            if asked is not None:
                status, part = 206, asked
                headers["content-range"] = f"bytes {part.first}-{part.end - 1}/{size}"
            if size <= SMALL_BYTES:
                return DoorResponse(status, first[part.first : part.end], headers)
            headers["content-length"] = str(part.end - part.first)
            response = DoorResponse(status, pieces_of(reader, part), headers)
            reader = None  # type: ignore[assignment] # closed by the iterator
            return response
        finally:
            if reader is not None:
                reader.close()

    async def write(self, request: DoorRequest) -> DoorResponse:
        """PUT /files: the body becomes the file."""
        files, path = await self._writable(request), request.query.get("path", "")
        size, pieces = await self._content(request)
        begin: Callable[[], FileWriter] = partial(
            files.write_file,
            path,
            mode=_mode(request),
            size_bytes=size,
            attributes=_attributes(request),
        )
        if size is not None and size <= SMALL_BYTES:
            small = b"".join([piece async for piece in pieces])
            return _json(await asyncio.to_thread(_write_small, begin, small), 201)
        writer = await asyncio.to_thread(begin)
        try:
            async for piece in pieces:
                await asyncio.to_thread(writer.write, piece)
            return _json(await asyncio.to_thread(writer.commit), 201)
        finally:
            await asyncio.shield(asyncio.to_thread(writer.abort))

    async def _content(self, request: DoorRequest) -> tuple[int | None, AsyncIterator[bytes]]:
        """Return size and pieces of what is to be written: the body, or an object of the trajectory's project."""
        sha256 = request.query.get("stored")
        if sha256 is None:
            return _declared(request), _bounded(request)
        key = object_key(FILES, project_of(request), sha256)
        return await stored_content(existing(self._objects), key, MAX_UPLOAD_BYTES)

    async def remove(self, request: DoorRequest) -> DoorResponse:
        """DELETE /files: with ``recursive`` a whole directory."""
        files, path = await self._writable(request), request.query.get("path", "")
        if _flag(request, "recursive"):
            await files.remove_tree(path)
        else:
            await asyncio.to_thread(files.remove, path)
        return _json({"path": path})

    async def stat(self, request: DoorRequest) -> DoorResponse:
        """GET /stat."""
        files, path = await self._of(request), request.query.get("path", "")
        follow, attributes = _flag(request, "follow", default=True), _flag(request, "attributes")
        look = partial(files.stat, path, follow=follow, attributes=attributes)
        return _json(await asyncio.to_thread(look))

    async def set_mode(self, request: DoorRequest) -> DoorResponse:
        """PATCH /stat."""
        files, path = await self._writable(request), request.query.get("path", "")
        return _json(await asyncio.to_thread(files.set_mode, path, _mode(request) or 0))

    async def entries(self, request: DoorRequest) -> DoorResponse:
        """GET /directory."""
        files, query = await self._of(request), request.query
        path, after = query.get("path", ""), query.get("after", "")
        limit, attributes = int(query.get("limit") or MAX_ENTRIES), _flag(request, "attributes")
        look = partial(files.entries, path, after=after, limit=limit, attributes=attributes)
        return _json(await asyncio.to_thread(look))

    async def make_directory(self, request: DoorRequest) -> DoorResponse:
        """PUT /directory."""
        files, path = await self._writable(request), request.query.get("path", "")
        mode, parents = _mode(request), _flag(request, "parents", default=True)
        made = await asyncio.to_thread(
            lambda: files.make_directory(
                path, mode=0o755 if mode is None else mode, parents=parents
            )
        )
        return _json(made, 201)

    async def move(self, request: DoorRequest) -> DoorResponse:
        """POST /move."""
        files, query = await self._writable(request), request.query

        def move() -> FileFacts:
            files.move(query["source"], query["target"], replace=_flag(request, "replace"))
            return files.stat(query["target"], follow=False)

        return _json(await asyncio.to_thread(move))

    async def pack(self, request: DoorRequest) -> DoorResponse:
        """GET /tree."""
        files = await self._of(request)
        return DoorResponse(200, await files.pack(request.query.get("path", "")), _TAR)

    async def unpack(self, request: DoorRequest) -> DoorResponse:
        """PUT /tree."""
        files = await self._writable(request)
        _, archive = await self._content(request)
        return _json(await files.unpack(request.query.get("path", ""), archive), 201)


def _opened(files: EnvironmentFiles, path: str) -> tuple[FileReader, bytes]:
    """Open a file; return it with its content where it is small."""
    reader = files.open_file(path)
    try:
        small = reader.facts.size_bytes <= SMALL_BYTES
        return reader, reader.read(0, reader.facts.size_bytes) if small else b""
    except BaseException:
        reader.close()
        raise


def _write_small(begin: Callable[[], FileWriter], content: bytes) -> FileFacts:
    writer = begin()
    try:
        writer.write(content)
        return writer.commit()
    finally:
        writer.abort()


async def pieces_of(reader: FileReader, part: ByteRange) -> AsyncIterator[bytes]:
    """Yield a range of a file; one that shrinks meanwhile breaks the response off."""
    at = part.first
    try:
        while at < part.end:
            piece = await asyncio.to_thread(reader.read, at, min(PIECE_BYTES, part.end - at))
            if not piece:
                raise InvalidRequest("the file shrank while it was read")
            yield piece
            at += len(piece)
    finally:
        reader.close()


async def _bounded(request: DoorRequest) -> AsyncIterator[bytes]:
    size = 0
    async for piece in request.chunks():
        size += len(piece)
        if size > MAX_UPLOAD_BYTES:
            raise _too_large()
        yield piece


def _too_large() -> DoorError:
    return DoorError(413, "too_large", f"the body is larger than {MAX_UPLOAD_BYTES} bytes")


def _declared(request: DoorRequest) -> int | None:
    text = request.headers.get(b"content-length", b"")
    return int(text) if text.isdigit() else None


def _mode(request: DoorRequest) -> int | None:
    text = request.query.get("mode", "")
    return int(text, 8) if text else None


def _attributes(request: DoorRequest) -> dict[str, str] | None:
    text = request.query.get("attributes")
    return None if text is None else _named.decode(text)


def _flag(request: DoorRequest, name: str, *, default: bool = False) -> bool:
    text = request.query.get(name)
    return default if text is None else text == "true"


def _json(value: Any, status: int = 200) -> DoorResponse:
    return DoorResponse(status, msgspec.json.encode(value), {"content-type": "application/json"})
