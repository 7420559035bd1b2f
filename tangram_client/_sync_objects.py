"""Large contents by URLs of the object store, blocking. Generated from `_async_objects`: change that one.

``python -m tests.architecture.sync_client`` writes this module.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from typing import IO, Any, Protocol, TypeVar

import httpx

from tangram_client import _calls, _http, _object_calls
from tangram_client._core import ApiCall
from tangram_client.archives import digest_of_file
from tangram_client.errors import Refused, Unreachable
from tangram_client.models import ActionView
from tangram_client.retry import RetryPolicy

T = TypeVar("T")

_PIECE_BYTES = 256 * 1024


class ObjectSender(Protocol):
    """What carries a call to its end: a client."""

    def send(self, call: ApiCall[T], *, retry: RetryPolicy | None = None) -> T:
        """Return the answer; ``retry``: instead of its own policy."""


def upload_object(
    sender: ObjectSender,
    file: IO[bytes],
    owner: dict[str, str],
    use: Callable[[str], ApiCall[Any]],
    *,
    kind: str = "file",
) -> list[Any]:
    """Store a large content, and have it used; return the answer in a list, empty where it has to pass the web process.

    ``use``: the call for a digest.
    """
    size, most = file.seek(0, 2), _object_calls.MOST_BYTES
    if not _object_calls.DIRECT_BYTES <= size <= most or sender in _object_calls.WITHOUT_STORE:
        return []
    sha256 = digest_of_file(file)
    try:
        asking = _object_calls.upload_url(sha256, size, owner, kind)
        signed = sender.send(asking, retry=_object_calls.ONE_TRY)
        headers = {"content-length": str(size)}
        with _http.object_sync_client() as client:
            sent = client.put(signed.url, content=pieces(file), headers=headers)
    except (Refused, Unreachable, httpx.TransportError) as error:
        _object_calls.object_failed(sender, error)
        return []
    if not sent.is_success:
        return []
    try:
        return [sender.send(use(sha256))]
    except Refused as error:
        if error.problem.code not in _object_calls.NOT_STORED:
            raise
        _object_calls.object_failed(sender, error)
        return []


def download_object(sender: ObjectSender, call: ApiCall[Any], file: IO[bytes]) -> bool:
    """Write what ``call`` had stored to ``file``; False, with an empty one, where it has to pass the web process."""
    if sender in _object_calls.WITHOUT_STORE:
        return False
    whole = False
    try:
        signed = sender.send(call, retry=_object_calls.ONE_TRY)
        if isinstance(signed, bytes):
            file.write(signed)
            return True
        with _http.object_sync_client() as client, client.stream("GET", signed.url) as got:
            for piece in got.iter_bytes():
                file.write(piece)
        file.flush()
        whole = digest_of_file(file) == signed.sha256
    except (Refused, Unreachable, httpx.TransportError) as error:
        _object_calls.object_failed(sender, error)
    if not whole:
        file.seek(0)
        file.truncate()
    return whole


def whole_action(sender: ObjectSender, call: ApiCall[ActionView]) -> ActionView:
    """Return the action that ``call`` answers with, its result from the object store where that is large."""
    view = sender.send(_object_calls.preferring_store(sender, call))
    if not _object_calls.is_shortened(view):
        return view
    with tempfile.TemporaryFile() as file:
        if download_object(sender, _object_calls.result_url(view.id), file):
            file.seek(0)
            return _object_calls.with_result(view, file.read())
    return sender.send(_calls.get_action(view.id, None, call.params.get("include")))


def pieces(file: IO[bytes]) -> Iterator[bytes]:
    """Yield a file from its beginning."""
    file.seek(0)
    while piece := file.read(_PIECE_BYTES):
        yield piece
