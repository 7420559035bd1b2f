"""Content of files (``/files`` of E2B's envd), by token or by a signed URL.

``GET`` streams a file. ``POST`` writes one from the body (``application/octet-stream``), or several from the parts
``file`` of a form, whose file names are their paths; the body may be compressed with gzip. A body is written as it
arrives, and a file replaces the old one when it is complete. Headers ``X-Metadata-NAME`` become metadata of each file.

The signature of a URL is that of its sandbox, which it does not name: E2B's SDKs join ``/files`` to the root of the
address, so both ``/e2b/files`` and ``/files`` are served.
"""

from __future__ import annotations

import posixpath
import zlib
from collections.abc import AsyncIterator
from typing import Final

from domain.errors import InvalidRequest, Unavailable
from domain.ports.files import MAX_UPLOAD_BYTES
from facades.e2b.connect import Message
from facades.e2b.filesystem import ATTRIBUTE
from facades.e2b.form import file_parts
from facades.e2b.paths import Homes, resolved, user_of
from facades.e2b.sandbox import OpenSandbox, signed_sandbox
from scheduler.runtime.gateway.facade import FacadePort
from scheduler.runtime.gateway.http import (
    HttpError,
    HttpRequest,
    HttpResponse,
    Send,
)
from scheduler.runtime.gateway.native_calls import NativeStream

_PIECE_BYTES: Final = 256 * 1024
_GZIP: Final = 31
_METADATA: Final = b"x-metadata-"


class SandboxFiles:
    """Handlers of ``/files``."""

    def __init__(self, port: FacadePort, homes: Homes) -> None:
        self._port = port
        self._homes = homes

    async def download(self, request: HttpRequest, _: str | None, send: Send) -> None:
        """GET: the content of a file."""
        sandbox = await signed_sandbox(self._port, request, "read")
        path = await self._path(request, sandbox)
        await request.body(0)
        async with sandbox.native.download(sandbox.name, path) as file:
            await _send_file(file, request, send)

    async def upload(self, request: HttpRequest, _: str | None) -> HttpResponse:
        """POST: write files."""
        return HttpResponse(200, await self._upload(request))

    async def _upload(self, request: HttpRequest) -> list[Message]:
        sandbox = await signed_sandbox(self._port, request, "write")
        home = await self._homes.of(sandbox, user_of(request))
        named = request.query().get("path")
        kind, metadata = request.header(b"content-type"), _metadata(request)
        body = _body(request)
        if kind.partition(";")[0].strip().lower() == "application/octet-stream":
            if not named:
                raise InvalidRequest("name the file: ?path=", pointer="?path")
            return [await _write(sandbox, resolved(named, home), body, metadata)]
        if not kind.lower().startswith("multipart/"):
            raise InvalidRequest(
                f"{kind or 'no content type'}: send application/octet-stream or multipart/form-data"
            )
        written: list[Message] = []
        async for part in file_parts(kind, body):
            path = resolved(named or part.filename, home)
            if any(path == each["path"] for each in written):
                raise InvalidRequest(f"{path!r} is in the form twice")
            written.append(await _write(sandbox, path, part.content, metadata))
        if not written:
            raise InvalidRequest("the form has no part named file")
        return written

    async def _path(self, request: HttpRequest, sandbox: OpenSandbox) -> str:
        named = request.query().get("path")
        if not named:
            raise InvalidRequest("name the file: ?path=", pointer="?path")
        return resolved(named, await self._homes.of(sandbox, user_of(request)))


async def _write(
    sandbox: OpenSandbox, path: str, pieces: AsyncIterator[bytes], metadata: dict[str, str]
) -> Message:
    attributes = {f"{ATTRIBUTE}{name}": text for name, text in metadata.items()}
    try:
        await sandbox.native.upload(sandbox.name, path, pieces, attributes)
    except Unavailable as error:
        raise HttpError(503, "unavailable", str(error), **{"Should-Retry": "false"}) from None
    written: Message = {"name": posixpath.basename(path), "type": "file", "path": path}
    return written | ({"metadata": metadata} if metadata else {})


def _metadata(request: HttpRequest) -> dict[str, str]:
    """Return the metadata that the headers of a request give its files; names are in lower case."""
    return {
        name.removeprefix(_METADATA).decode("latin-1").lower(): value.decode("latin-1")
        for name, value in request.headers.items()
        if name.startswith(_METADATA) and name != _METADATA
    }


async def _send_file(file: NativeStream, request: HttpRequest, send: Send) -> None:
    """Send a file as it arrives."""
    headers = [
        (b"content-type", b"application/octet-stream"),
        (b"x-request-id", request.id.encode("latin-1")),
    ]
    if length := file.headers.get("content-length"):
        headers.append((b"content-length", length.encode()))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    async for piece in file.chunks:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _body(request: HttpRequest) -> AsyncIterator[bytes]:
    """Yield the body as it arrives, without its compression. Raises InvalidRequest, HttpError 413."""
    encoding = request.header(b"content-encoding").strip().lower()
    if encoding in ("", "identity"):
        async for piece in request.chunks(MAX_UPLOAD_BYTES):
            yield piece
        return
    if encoding != "gzip":
        raise InvalidRequest(f"Content-Encoding {encoding!r}: send gzip, or none")
    unpack = zlib.decompressobj(_GZIP)
    size = 0
    try:
        async for piece in request.chunks(MAX_UPLOAD_BYTES):
            while piece:
                plain = unpack.decompress(piece, _PIECE_BYTES)
                piece = unpack.unconsumed_tail
                size += len(plain)
                if size > MAX_UPLOAD_BYTES:
                    raise HttpError(
                        413, "too_large", f"it holds more than {MAX_UPLOAD_BYTES} bytes"
                    )
                yield plain
    except zlib.error as error:
        raise InvalidRequest(f"the body is not gzip: {error}") from None
    if not unpack.eof:
        raise InvalidRequest("the compressed body is not complete")
