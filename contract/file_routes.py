"""Routes of the files of environments. They need no grant, and reach the node directly.

A path is absolute inside the environment, or relative to ``/workspace``. It is in the query, where no server
in between changes it; ``…/files/{path}`` is the short form for files below the workspace.
"""

from __future__ import annotations

from typing import Any

from contract.receipts import RemovedFile, SignedObject, WrittenFile
from contract.requests import FileModeRequest, MoveRequest, UploadRequest
from contract.route import API_PREFIX, PROJECT, TEXT, Binary, Body, Parameter, Route
from domain.ports.files import (
    MAX_ATTRIBUTE_BYTES,
    MAX_ENTRIES,
    MAX_UPLOAD_BYTES,
    DirectoryListing,
    FileFacts,
    UnpackedArchive,
)
from domain.principals import Scope

_TRAJECTORY = f"{API_PREFIX}/trajectories/{{id}}"
_BOOLEAN: dict[str, Any] = {"type": "boolean"}
PATH = Parameter(
    "path", "Absolute inside the environment, or relative to `/workspace`; without `..`.", TEXT
)
RANGE = Parameter(
    "Range", "One range of bytes: `bytes=0-99`, `bytes=100-`, `bytes=-100`.", TEXT, "header"
)
MODE = Parameter(
    "mode", "Permissions in octal, as `0644`.", {"type": "string", "pattern": "^[0-7]{1,4}$"}
)
ATTRIBUTES = Parameter(
    "attributes",
    "With the extended attributes that any user may set, `user.*`, without that prefix.",
    _BOOLEAN,
)
SET_ATTRIBUTES = Parameter(
    "attributes",
    "Extended attributes of the file: a JSON object of names, stored as `user.NAME`, and texts; at"
    f" most {MAX_ATTRIBUTE_BYTES} bytes.",
    TEXT,
)
STORED = Parameter(
    "stored",
    "SHA-256 of a content that was stored at a URL of `POST /uploads`; the body is empty then.",
    {"type": "string", "pattern": "^[0-9a-f]{64}$"},
)
LEAST_BYTES = Parameter(
    "least_bytes",
    "What is smaller is refused as `small_file`: reading it directly is quicker.",
    {"type": "integer", "minimum": 0},
)
CONTENT = Binary("application/octet-stream", "The bytes of the file, or of the range.")
UPLOAD = Binary("application/octet-stream", f"The file, up to {MAX_UPLOAD_BYTES} bytes.")
ARCHIVE = Binary("application/x-tar", "A tar archive; uploaded, it may be compressed with gzip.")
#: What a write may meet: no trajectory, its end, a full quota or disk.
_WRITE_ERRORS = (404, 409, 410, 413, 422, 507)

_CONTENT_METHODS = (
    ("PUT", "files_put", "Write a file; the old one stays until it is complete", Scope.SUBMIT),
    ("GET", "files_get", "Read a file, or a range of it", Scope.READ),
    ("DELETE", "files_delete", "Delete a file, a link or a directory", Scope.SUBMIT),
)
_RECURSIVE = Parameter("recursive", "Delete a directory with all it holds.", _BOOLEAN)


_CONTENT_RESPONSES: dict[str, dict[int, Body]] = {
    "PUT": {201: WrittenFile},
    "GET": {200: CONTENT, 206: CONTENT},
    "DELETE": {200: RemovedFile},
}


def _content(method: str, operation: str, summary: str, scope: Scope, *, short: bool) -> Route:
    """Return a route on the content of a file."""
    own = {"PUT": (MODE, SET_ATTRIBUTES, STORED), "GET": (RANGE,), "DELETE": (_RECURSIVE,)}[method]
    return Route(
        method=method,
        path=f"{_TRAJECTORY}/files/{{path}}" if short else f"{_TRAJECTORY}/files",
        operation=operation if short else f"{operation}_at",
        summary=f"{summary}, below the workspace" if short else summary,
        scope=scope,
        body=UPLOAD if method == "PUT" else None,
        parameters=(PROJECT, *(() if short else (PATH,)), *own),
        responses=_CONTENT_RESPONSES[method],
        errors=(404, 409, 410, 416, 422) if method == "GET" else _WRITE_ERRORS,
        streams=method == "GET",
    )


FILES = (
    *(_content(*each, short=True) for each in _CONTENT_METHODS),
    *(_content(*each, short=False) for each in _CONTENT_METHODS),
    Route(
        method="GET",
        path=f"{_TRAJECTORY}/stat",
        operation="files_stat",
        summary="Kind, size, permissions and time of a file or directory",
        scope=Scope.READ,
        parameters=(
            PROJECT,
            PATH,
            Parameter("follow", "Follow a link at the end of the path; the default.", _BOOLEAN),
            ATTRIBUTES,
        ),
        responses={200: FileFacts},
        errors=(404, 409, 410, 422),
    ),
    Route(
        method="PATCH",
        path=f"{_TRAJECTORY}/stat",
        operation="files_set_mode",
        summary="Set the permissions of a file or directory",
        scope=Scope.SUBMIT,
        parameters=(PROJECT, PATH),
        body=FileModeRequest,
        responses={200: FileFacts},
        errors=_WRITE_ERRORS,
    ),
    Route(
        method="GET",
        path=f"{_TRAJECTORY}/directory",
        operation="files_list",
        summary="Entries of a directory, by name",
        scope=Scope.READ,
        parameters=(
            PROJECT,
            PATH,
            Parameter("after", "`next` of the page before.", TEXT),
            Parameter(
                "limit",
                "Entries on a page.",
                {"type": "integer", "minimum": 1, "maximum": MAX_ENTRIES},
            ),
            ATTRIBUTES,
        ),
        responses={200: DirectoryListing},
        errors=(404, 409, 410, 422),
    ),
    Route(
        method="PUT",
        path=f"{_TRAJECTORY}/directory",
        operation="files_make_directory",
        summary="Make a directory",
        scope=Scope.SUBMIT,
        parameters=(
            PROJECT,
            PATH,
            MODE,
            Parameter(
                "parents",
                "Make those before it too, and accept one that exists; the default.",
                _BOOLEAN,
            ),
        ),
        responses={201: FileFacts},
        errors=_WRITE_ERRORS,
    ),
    Route(
        method="POST",
        path=f"{_TRAJECTORY}/move",
        operation="files_move",
        summary="Rename a file or directory",
        scope=Scope.SUBMIT,
        parameters=(PROJECT,),
        body=MoveRequest,
        responses={200: FileFacts},
        errors=_WRITE_ERRORS,
    ),
    Route(
        method="GET",
        path=f"{_TRAJECTORY}/tree",
        operation="files_pack",
        summary="A file or directory as a tar archive, while it is made",
        scope=Scope.READ,
        parameters=(PROJECT, PATH),
        responses={200: ARCHIVE},
        errors=(404, 409, 410, 422),
        streams=True,
    ),
    Route(
        method="POST",
        path=f"{API_PREFIX}/uploads",
        operation="files_upload_url",
        summary="Where a content can be stored, for a file, a tree or an image that is made of it",
        scope=Scope.SUBMIT,
        parameters=(PROJECT,),
        body=UploadRequest,
        responses={201: SignedObject},
        errors=(403, 404, 409, 413, 422),
    ),
    Route(
        method="POST",
        path=f"{_TRAJECTORY}/downloads",
        operation="files_download_url",
        summary="Store a file or a tree of an environment, and say where it can be read",
        scope=Scope.READ,
        parameters=(
            PROJECT,
            PATH,
            Parameter(
                "tree",
                "The archive of the file or directory, as `GET …/tree`; a small one is the answer.",
                _BOOLEAN,
            ),
            LEAST_BYTES,
        ),
        responses={200: ARCHIVE, 201: SignedObject},
        errors=(404, 409, 410, 422, 507),
    ),
    Route(
        method="PUT",
        path=f"{_TRAJECTORY}/tree",
        operation="files_unpack",
        summary="Unpack a tar archive into a directory; what is refused may be unpacked in part",
        scope=Scope.SUBMIT,
        parameters=(PROJECT, PATH, STORED),
        body=ARCHIVE,
        responses={201: UnpackedArchive},
        errors=_WRITE_ERRORS,
    ),
)
