"""The endpoints of files: one function each, which returns the `ApiCall`."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from tangram_client._core import ApiCall, ApiResponse, Content
from tangram_client._object_calls import TREE_SECONDS
from tangram_client.errors import InvalidRequestError
from tangram_client.models import FileInfo, FilePage, Problem

_BYTES = {"Content-Type": "application/octet-stream"}
_TAR = {"Content-Type": "application/x-tar"}


def stat(base: str, path: str, *, follow: bool, **owner: str) -> ApiCall[FileInfo]:
    """Read the facts of a file or directory."""
    params = _params(path, owner, follow="true" if follow else "false")
    return ApiCall("GET", f"{base}/stat", _info, params)


def entries(base: str, path: str, *, after: str, **owner: str) -> ApiCall[FilePage]:
    """Read a page of the entries of a directory."""
    return ApiCall("GET", f"{base}/directory", _page, _params(path, owner, after=after))


def read(base: str, path: str, *, offset: int, size: int | None, **owner: str) -> ApiCall[bytes]:
    """Read a file, or a part of it."""
    headers = {}
    if offset or size is not None:
        headers["Range"] = f"bytes={offset}-{'' if size is None else offset + size - 1}"
    return ApiCall(
        "GET", f"{base}/files", lambda answer: answer.content, _params(path, owner), headers
    )


def write(
    base: str, path: str, content: Content, *, mode: int | None, **owner: str
) -> ApiCall[None]:
    """Write a file."""
    params = _params(path, owner, mode=_octal(mode))
    return ApiCall(
        "PUT", f"{base}/files", _nothing, params, _BYTES, content, wait_seconds=TREE_SECONDS
    )


def write_stored(
    base: str, path: str, sha256: str, *, mode: int | None, **owner: str
) -> ApiCall[None]:
    """Write a file whose content is stored."""
    params = _params(path, owner, mode=_octal(mode), stored=sha256)
    return ApiCall("PUT", f"{base}/files", _nothing, params, wait_seconds=TREE_SECONDS)


def remove(base: str, path: str, *, recursive: bool, **owner: str) -> ApiCall[None]:
    """Delete a file or directory."""
    params = _params(path, owner, recursive="true" if recursive else "")
    return ApiCall("DELETE", f"{base}/files", _nothing, params, wait_seconds=TREE_SECONDS)


def make_directory(
    base: str, path: str, *, mode: int | None, parents: bool, **owner: str
) -> ApiCall[FileInfo]:
    """Make a directory."""
    params = _params(path, owner, mode=_octal(mode), parents="" if parents else "false")
    return ApiCall("PUT", f"{base}/directory", _info, params)


def set_mode(base: str, path: str, mode: int, **owner: str) -> ApiCall[FileInfo]:
    """Set the permissions of a file or directory."""
    body = json.dumps({"mode": _octal(mode)}).encode()
    return ApiCall("PATCH", f"{base}/stat", _info, _params(path, owner), _JSON, body)


def move(base: str, source: str, target: str, *, replace: bool, **owner: str) -> ApiCall[FileInfo]:
    """Rename a file or directory."""
    body = json.dumps({"source": source, "target": target, "replace": replace}).encode()
    return ApiCall("POST", f"{base}/move", _info, owner, _JSON, body)


def unpack(base: str, path: str, archive: Content, **owner: str) -> ApiCall[None]:
    """Unpack a tar archive into a directory."""
    params = _params(path, owner)
    return ApiCall(
        "PUT", f"{base}/tree", _nothing, params, _TAR, archive, wait_seconds=TREE_SECONDS
    )


def unpack_stored(base: str, path: str, sha256: str, **owner: str) -> ApiCall[None]:
    """Unpack a tar archive that is stored."""
    params = _params(path, owner, stored=sha256)
    return ApiCall("PUT", f"{base}/tree", _nothing, params, wait_seconds=TREE_SECONDS)


def content_of(base: str, path: str, **owner: str) -> ApiCall[None]:
    """Read a file as a stream."""
    return ApiCall("GET", f"{base}/files", _nothing, _params(path, owner))


def pack(base: str, path: str, **owner: str) -> ApiCall[None]:
    """Read the tar archive of a file or directory as a stream."""
    return ApiCall("GET", f"{base}/tree", _nothing, _params(path, owner))


def base_of(trajectory: str) -> str:
    """Return the path of a trajectory. Raises InvalidRequest for a name that is none."""
    if not trajectory or "/" in trajectory or trajectory in {".", ".."}:
        raise InvalidRequestError(
            Problem(
                422, code="trajectory", detail=f"{trajectory!r} is not the name of a trajectory"
            )
        )
    return f"/api/v1/trajectories/{quote(trajectory, safe='')}"


_JSON = {"Content-Type": "application/json"}


def _params(path: str, owner: dict[str, str], **more: str) -> dict[str, str]:
    return {"path": path, **owner, **{name: value for name, value in more.items() if value}}


def _octal(mode: int | None) -> str:
    return "" if mode is None else f"{mode:04o}"


def _info(response: ApiResponse) -> FileInfo:
    return FileInfo.of(response.json())


def _page(response: ApiResponse) -> FilePage:
    body: dict[str, Any] = response.json()
    return FilePage([FileInfo.of(each) for each in body["entries"]], body.get("next"))


def _nothing(response: ApiResponse) -> None:
    return None
