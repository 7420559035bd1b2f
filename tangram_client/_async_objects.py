"""Large files by URLs of the object store: the source from which `_sync_objects` is generated.

``python -m tests.architecture.sync_client`` writes the blocking twin; a test holds the two together.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import IO, Any, Protocol, TypeVar

import httpx

from tangram_client import _file_calls, _http
from tangram_client._core import ApiCall
from tangram_client.archives import digest_of_file
from tangram_client.errors import Refused
from tangram_client.retry import RetryPolicy

T = TypeVar("T")

_PIECE_BYTES = 256 * 1024


class AsyncObjectSender(Protocol):
    """What carries a call to its end: a client."""

    async def send(self, call: ApiCall[T], *, retry: RetryPolicy | None = None) -> T:
        """Return the answer; ``retry``: instead of its own policy."""


async def upload_object(
    sender: AsyncObjectSender,
    file: IO[bytes],
    owner: dict[str, str],
    write: Callable[[str], ApiCall[None]],
) -> bool:
    """Store a large file, and have it written; False where it has to pass the web process.

    ``write``: the call for a digest.
    """
    size = file.seek(0, 2)
    if size < _file_calls.DIRECT_BYTES or sender in _file_calls.WITHOUT_STORE:
        return False
    sha256 = await asyncio.to_thread(digest_of_file, file)
    try:
        signed = await sender.send(_file_calls.upload_url(sha256, size, **owner))
        headers = {"content-length": str(size)}
        async with _http.object_async_client() as client:
            sent = await client.put(signed.url, content=pieces(file), headers=headers)
    except (Refused, httpx.TransportError) as error:
        _file_calls.object_failed(sender, error)
        return False
    if not sent.is_success:
        return False
    try:
        await sender.send(write(sha256))
    except Refused as error:
        if error.problem.code not in _file_calls.NOT_STORED:
            raise
        _file_calls.object_failed(sender, error)
        return False
    return True


async def download_object(sender: AsyncObjectSender, call: ApiCall[Any], file: IO[bytes]) -> bool:
    """Write what ``call`` had stored to ``file``; False, with an empty one, where it has to pass the web process."""
    if sender in _file_calls.WITHOUT_STORE:
        return False
    whole = False
    try:
        signed = await sender.send(call)
        async with _http.object_async_client() as client, client.stream("GET", signed.url) as got:
            async for piece in got.aiter_bytes():
                file.write(piece)
        file.flush()
        whole = await asyncio.to_thread(digest_of_file, file) == signed.sha256
    except (Refused, httpx.TransportError) as error:
        _file_calls.object_failed(sender, error)
    if not whole:
        file.seek(0)
        file.truncate()
    return whole


async def pieces(file: IO[bytes]) -> AsyncIterator[bytes]:
    """Yield a file from its beginning."""
    file.seek(0)
    while piece := file.read(_PIECE_BYTES):
        yield piece
