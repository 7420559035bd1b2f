"""WebLimits of connections and requests, the same for every route, and the refusals of requests beyond them.

A refusal is a problem (RFC 9457), and the connection ends with it:

    400  a path that a server could resolve to another one · no HTTP
    408  the head or the body arrives too slowly
    413  the body is larger than its route permits
    429  too many connections from one address
    431  the head of the request is too large
    503  too many connections, or too many bytes of bodies, in this process
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, unquote_to_bytes

import httptools
import msgspec

from contract.requests import MAX_BODY_BYTES
from contract.responses import ProblemDetails
from contract.routes import API_PREFIX
from domain.ports.files import MAX_UPLOAD_BYTES

#: Key in the scope of a request whose bytes `tangram_web.serving.protocol` counts.
COUNTED: Final = "tangram.counted"
#: File descriptors of the process that are not for clients: Redis, the database, logs, files.
RESERVED_DESCRIPTORS: Final = 256
#: Paths of files in a trajectory; their own rules apply to what is behind ``/files/``.
_FILES: Final = re.compile(rb"(?:/v1)?/trajectories/[^/]+/files/")
#: Uploads of files and trees, which are passed on as they arrive (`contract.file_routes`).
_UPLOADS: Final = re.compile(rb"(?:/v1)?/trajectories/[^/?]+/(?:files/|(?:files|tree)/?(?:\?|$))")
#: Requests to servers inside environments, passed on likewise.
_PORTS: Final = re.compile(rb"(?:/v1)?/trajectories/[^/?]+/ports/")
#: An upload up to this size is kept as a whole (`scheduler.runtime.gateway.endpoints.files`).
_WHOLE_BYTES: Final = 64 * 1024
_PREFIX: Final = API_PREFIX.encode()
#: Longest target that is kept parsed: most requests repeat one.
CACHED_TARGET_BYTES: Final = 128
#: Servers in between may decode a path once more.
_DECODINGS: Final = 3
_DOTS: Final = frozenset({b".", b".."})


@dataclass(frozen=True)
class WebLimits:
    """WebLimits of one web process; `operations.md` lists the setting of each."""

    #: Request line and headers together, with their number.
    header_bytes: int = 64 * 1024
    header_count: int = 128
    #: Time for the whole head of a request, from its first byte; for a new connection from its start.
    header_seconds: float = 10.0
    #: Body of a request, except files of trajectories.
    body_bytes: int = MAX_BODY_BYTES
    #: Largest file or archive that is uploaded into an environment.
    file_bytes: int = MAX_UPLOAD_BYTES
    #: Bodies of all requests that are not answered yet; of an upload that is passed on, what waits here.
    bodies_bytes: int = 256 * 1024 * 1024
    #: A body that arrives more slowly is cut, once the grace is over.
    body_bytes_per_second: float = 1024.0
    body_grace_seconds: float = 10.0
    #: A client that reads nothing of its response for so long is cut.
    write_seconds: float = 60.0
    connections: int = 8192
    connections_per_address: int = 4096
    #: Addresses of proxies, whose clients all have its address.
    proxies: frozenset[str] = frozenset()
    #: Requests of one connection that wait for the one before them.
    pipelined: int = 16
    websocket_bytes: int = 64 * 1024
    websocket_frames: int = 64

    def body_limit(self, method: str, path: bytes) -> int:
        """Return the most bytes that the body of a request may have."""
        return self.file_bytes if _is_upload(method, path) else self.body_bytes

    def is_streamed(self, method: str, path: bytes, declared: bytes) -> bool:
        """Say whether a body is passed on as it arrives; ``declared``: its length, or empty."""
        is_whole = declared.isdigit() and len(declared) <= 18 and int(declared) <= _WHOLE_BYTES
        return _is_upload(method, path) and not is_whole


@dataclass(frozen=True)
class Refusal:
    """A refused request: what its client reads."""

    status: int
    code: str
    detail: str
    retry_after_seconds: int = 0

    def body(self) -> bytes:
        """Return the problem as JSON."""
        problem = ProblemDetails(
            title=HTTPStatus(self.status).phrase,
            status=self.status,
            code=self.code,
            detail=self.detail,
            request_id=f"req_{secrets.token_hex(12)}",
        )
        return msgspec.json.encode(problem)

    def headers(self, body: bytes) -> list[tuple[bytes, bytes]]:
        """Return the headers of a response that ends its connection."""
        found = [
            (b"content-type", b"application/problem+json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        if self.retry_after_seconds:
            found.append((b"retry-after", b"%d" % self.retry_after_seconds))
        return found

    def response(self) -> bytes:
        """Return the whole response as it is sent."""
        body = self.body()
        lines = [b"HTTP/1.1 %d %s" % (self.status, HTTPStatus(self.status).phrase.encode())]
        lines += [b"%s: %s" % header for header in self.headers(body)]
        return b"\r\n".join(lines) + b"\r\n\r\n" + body

    async def send(self, send: Any) -> None:
        """Send the response by ASGI."""
        body = self.body()
        start = {"type": "http.response.start", "status": self.status}
        await send({**start, "headers": self.headers(body)})
        await send({"type": "http.response.body", "body": body})


def too_large(limit_bytes: int) -> Refusal:
    """Return the refusal of a body."""
    return Refusal(413, "too_large", f"the body is larger than {limit_bytes} bytes")


AMBIGUOUS_PATH: Final = Refusal(
    400, "ambiguous_path", "a path has no . or .. in it, plain or encoded, with or without ;"
)


def is_ambiguous(path: bytes) -> bool:
    """Whether a server could resolve the path, as it was sent, to another one.

    A file of a trajectory has the stricter rules of its route (`admission.check_path`), except for
    parameters behind dots.
    """
    if b"." not in path and b"%" not in path:
        return False
    is_file = _is_file(path)
    for _ in range(_DECODINGS):
        for segment in path.replace(b"\\", b"/").split(b"/"):
            name, parameters, _rest = segment.partition(b";")
            if name in _DOTS and (parameters or not is_file):
                return True
        if b"%" not in path:
            return False
        path = unquote_to_bytes(path)
    return False


class RequestTarget(NamedTuple):
    """What the method and the target of a request say."""

    method: str
    #: Decoded once.
    path: str
    raw_path: bytes
    query: bytes
    is_upload: bool


@lru_cache(256)
def target_of(method: bytes, url: bytes) -> RequestTarget:
    """Return the parts of a target. Raises httptools.HttpParserInvalidURLError."""
    parsed, text = httptools.parse_url(url), method.decode("ascii")
    path = parsed.path.decode("ascii")
    decoded = unquote(path) if "%" in path else path
    return RequestTarget(text, decoded, parsed.path, parsed.query or b"", _is_upload(text, url))


def _is_upload(method: str, path: bytes) -> bool:
    if not path.startswith(_PREFIX):
        return False
    at = len(_PREFIX)
    is_file = method == "PUT" and _UPLOADS.match(path, at) is not None
    return is_file or _PORTS.match(path, at) is not None


def _is_file(path: bytes) -> bool:
    return path.startswith(_PREFIX) and _FILES.match(path, len(_PREFIX)) is not None
