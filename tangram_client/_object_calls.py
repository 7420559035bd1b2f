"""The endpoints of contents that pass the object store, and which clients do not reach it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final
from weakref import WeakSet

import httpx
import msgspec

from tangram_client._core import ApiCall, ApiResponse
from tangram_client.errors import Refused
from tangram_client.models import ActionView, SignedTransfer
from tangram_client.retry import RetryPolicy

#: Longest time that the server takes for a large file or a tree without a sign of life.
TREE_SECONDS = 600.0
#: Files and trees from this size on are stored, where there is a store that client and node reach.
DIRECT_BYTES: Final = 8 * 1024 * 1024
#: Results of actions from this size on: a web process decodes and encodes what it passes on.
DIRECT_RESULT_BYTES: Final = 1024 * 1024
#: Largest content that a store takes by one request.
MOST_BYTES: Final = 5 * 2**30
#: What fails has another way: it is not repeated.
ONE_TRY: Final = RetryPolicy(attempts=1)
#: Clients that reach no object store: their server has none or is of an earlier version, or it does not answer them.
WITHOUT_STORE: Final = WeakSet[Any]()
#: Refusals of a stored content; what is sent through the web process may be taken.
NOT_STORED: Final = frozenset({"no_object_store", "no_object"})
_JSON = {"Content-Type": "application/json"}
#: Member of a shortened result: the whole one has a body of its own.
_STORED = "stored_body"


def upload_url(
    sha256: str, size_bytes: int, owner: Mapping[str, str], kind: str = "file"
) -> ApiCall[SignedTransfer]:
    """Ask where a content can be stored; ``kind``: ``file`` or ``image``."""
    body: dict[str, object] = {"sha256": sha256, "size_bytes": size_bytes}
    if kind != "file":  # servers of earlier versions know no kinds
        body["kind"] = kind
    return ApiCall("POST", "/api/v1/uploads", _signed, owner, _JSON, json.dumps(body).encode())


def download_url(
    base: str, path: str, owner: Mapping[str, str], *, tree: bool = False
) -> ApiCall[SignedTransfer | bytes]:
    """Have a large file, or the archive of a tree, stored, and ask where it can be read; the answer may be a small archive."""
    params = {"path": path, **owner, "least_bytes": str(DIRECT_BYTES)}
    params |= {"tree": "true"} if tree else {}
    return ApiCall("POST", f"{base}/downloads", _signed_or_whole, params, wait_seconds=TREE_SECONDS)


def result_url(action_id: str) -> ApiCall[SignedTransfer]:
    """Have the result of an action stored, and ask where it can be read."""
    path = f"/api/v1/actions/{action_id}/downloads"
    return ApiCall("POST", path, _signed, wait_seconds=TREE_SECONDS)


def preferring_store(sender: Any, call: ApiCall[ActionView]) -> ApiCall[ActionView]:
    """Return a call whose answer may have a large result shortened; the same where the client reaches no store."""
    if sender in WITHOUT_STORE:
        return call
    prefer = {"Prefer": f"largest-result={DIRECT_RESULT_BYTES}"}
    return replace(call, headers={**call.headers, **prefer})


def is_shortened(view: ActionView) -> bool:
    """Return whether the whole result has to be read from the store."""
    return isinstance(view.result, Mapping) and _STORED in view.result


def with_result(view: ActionView, content: bytes) -> ActionView:
    """Return an action with its whole result."""
    result = msgspec.msgpack.decode(content)
    return replace(view, result=result, body={**view.body, "result": result})


def object_failed(sender: Any, error: Exception) -> None:
    """Remember a client whose next transfer would fail as well."""
    if isinstance(error, Refused):
        problem = error.problem
        # A server of an earlier version has no such route; what is said about a path or an action is of this transfer alone.
        unknown = problem.status == 405 or (problem.status == 404 and not problem.detail)
        lasting = unknown or problem.code == "no_object_store"
    else:
        lasting = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
    if lasting:
        WITHOUT_STORE.add(sender)


def _signed_or_whole(response: ApiResponse) -> SignedTransfer | bytes:
    return response.content if response.status == 200 else _signed(response)


def _signed(response: ApiResponse) -> SignedTransfer:
    body: dict[str, Any] = response.json()
    return SignedTransfer(body["url"], body["sha256"], body["size_bytes"])
