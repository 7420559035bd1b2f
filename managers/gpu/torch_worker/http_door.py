"""HTTP of the worker: its control paths, the exchange of caches, and requests to its model, whole or as events.

Connections stay open between requests. An answer of events begins with its first one, so what fails before it has a status; what
fails later ends the stream with an error event. A client that closes its connection ends its request.
"""

from __future__ import annotations

import json
import select
import socket
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from managers.gpu.torch_worker.cache_exchange import PATH, CacheExchange
from managers.gpu.torch_worker.cache_wire import CONTENT_TYPE
from managers.gpu.torch_worker.generation import Caller, CallerGone
from managers.gpu.torch_worker.kv_caches import LONGEST_NAME
from managers.gpu.torch_worker.worker import STATUS, Trouble, Worker

TRAJECTORY_HEADER = "X-Tangram-Trajectory"
#: Longest wait for a client that does not read its events, or send its body.
_PAUSE_SECONDS = 60.0
#: Of a refused body, read so that the refusal arrives.
_DRAINED_BYTES = 16 * 2**20
_PIECE_BYTES = 2**20


class Handler(BaseHTTPRequestHandler):
    """The paths of the package's rules."""

    worker: Worker
    exchange: CacheExchange
    #: Connections stay, and an answer leaves in one piece: each step of a switch is one round trip.
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def do_GET(self) -> None:
        """Answer with the state, the model, or a cache."""
        self._serve(self._get)

    def do_POST(self) -> None:
        """Restore, release, change weights, pull a cache, or pass the request to the model."""
        self._serve(self._post)

    def do_PUT(self) -> None:
        """Accept a cache."""
        self._serve(self._put)

    def do_DELETE(self) -> None:
        """Drop a cache."""
        self._serve(self._delete)

    def _serve(self, method: Any) -> None:
        self._left = int(self.headers.get("Content-Length") or 0)
        parts = urlsplit(self.path)
        self._route, self._query = parts.path, parts.query
        try:
            method()
        except Trouble as trouble:
            self._fail(trouble)
        except ValueError as error:
            self._fail(Trouble("bad_request", f"not JSON: {error}"))
        except OSError:  # the client is gone, or silent for too long
            self.close_connection = True
        finally:
            self._drain()

    def _get(self) -> None:
        worker = self.worker
        if self._route == "/tangram/state":
            self._send(200, worker.state())
        elif self._route == "/health":
            state = worker.state()
            self._send(200 if state["state"] == "resident" else 503, state)
        elif self._route == "/v1/models" and worker.speaks:
            self._send(200, worker.models())
        elif self._route == PATH:
            self._send(200, self.exchange.listed())
        elif (trajectory := self._trajectory_of_path()) is not None:
            self._export(trajectory)
        else:
            self._answer(None)

    def _post(self) -> None:
        body = json.loads(content) if (content := self._body()) else None
        if self._route == "/tangram/restore":
            self._send(200, self.worker.restore())
        elif self._route == "/tangram/release":
            self._send(200, self.worker.release())
        elif self._route == "/tangram/weights":
            self._send(200, self.worker.load_weights(body))
        elif (trajectory := self._trajectory_of_path("/pull")) is not None:
            check = HttpCaller(self, "").check
            self._send(200, self.exchange.pull(trajectory, body, check))
        else:
            self._answer(body)

    def _put(self) -> None:
        trajectory = self._trajectory_of_path()
        if trajectory is None:
            raise Trouble("bad_request", f"PUT is for {PATH}/TRAJECTORY")
        self.connection.settimeout(_PAUSE_SECONDS)
        try:
            self._send(200, self.exchange.accept(trajectory, self._read, self._left))
        finally:
            self.connection.settimeout(None)

    def _delete(self) -> None:
        trajectory = self._trajectory_of_path()
        if trajectory is None:
            raise Trouble("bad_request", f"DELETE is for {PATH}/TRAJECTORY")
        (digest,) = parse_qs(self._query).get("ids_sha256", [""])[:1]
        self._send(200, self.exchange.drop(trajectory, digest))

    def _answer(self, body: Any) -> None:
        named = self._trajectory_of_request(body) if self.worker.speaks else ""
        caller = HttpCaller(self, named)
        try:
            answer = self.worker.answer(self._route, body, caller)
        except Trouble as trouble:
            if not caller.begun:
                raise
            caller.event({"error": {"message": str(trouble), "type": trouble.kind, "param": None,
                                    "code": trouble.kind}})  # fmt: skip
            caller.end(whole=False)
            return
        if caller.begun:
            caller.end(whole=True)
        else:
            self._send(200, answer)

    def _export(self, trajectory: str) -> None:
        cache = self.exchange.export(trajectory)
        self.connection.settimeout(_PAUSE_SECONDS)
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(cache.nbytes))
        self.end_headers()
        for piece in cache.pieces():
            self.wfile.write(piece)
        self.wfile.flush()
        self.connection.settimeout(None)

    def _trajectory_of_path(self, verb: str = "") -> str | None:
        """Return the trajectory of ``/tangram/caches/TRAJECTORY``, with ``verb`` after it; None for another path."""
        if not self._route.startswith(PATH + "/") or not self._route.endswith(verb):
            return None
        name = self._route[len(PATH) + 1 : len(self._route) - len(verb)]
        return None if "/" in name or not name else unquote(name)

    def _trajectory_of_request(self, body: Any) -> str:
        """Return whose request it is: by the header, else by the member ``tangram`` of the body."""
        stated: Any = self.headers.get(TRAJECTORY_HEADER)
        own = body.get("tangram") if isinstance(body, dict) else None
        if stated is None and isinstance(own, dict):
            stated = own.get("trajectory")
        if stated is None:
            return ""
        if not isinstance(stated, str) or len(stated) > LONGEST_NAME:
            raise Trouble("bad_request", f"a trajectory has at most {LONGEST_NAME} characters")
        return stated

    def _body(self) -> bytes:
        return self._read(self._left)

    def _read(self, count: int) -> bytes:
        """Return so many bytes of the body, fewer at its end."""
        data: bytes = self.rfile.read(min(count, self._left))
        self._left -= len(data)
        return data

    def _drain(self) -> None:
        """Read the rest of a refused body; the connection of a larger one is closed."""
        self.close_connection = self.close_connection or self._left > _DRAINED_BYTES
        if self._left:
            self.connection.settimeout(_PAUSE_SECONDS)
        try:
            while self._left and not self.close_connection:
                if not self._read(_PIECE_BYTES):
                    self.close_connection = True
            self.connection.settimeout(None)
        except OSError:
            self.close_connection = True

    def _fail(self, trouble: Trouble) -> None:
        self._send(STATUS[trouble.kind], {"error": trouble.kind, "detail": str(trouble)})

    def _send(self, status: int, body: Any) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if status == STATUS["aborted"]:
            self.send_header("Retry-After", "1")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Log no requests."""


class HttpCaller(Caller):
    """The client of one request."""

    def __init__(self, handler: Handler, trajectory: str) -> None:
        self.trajectory = trajectory
        self._handler = handler
        self._begun = False

    @property
    def begun(self) -> bool:
        """An event was sent."""
        return self._begun

    def check(self) -> None:
        """Raise CallerGone once the client has closed its connection."""
        connection = self._handler.connection
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        if poll.poll(0) and connection.recv(1, socket.MSG_PEEK) == b"":
            raise CallerGone

    def event(self, data: dict[str, Any]) -> None:
        """Send one event."""
        if not self._begun:
            self._begin()
        self._write(f"data: {json.dumps(data)}\n\n".encode())

    def end(self, *, whole: bool) -> None:
        """End the events; ``whole``: as OpenAI's protocol marks a complete answer."""
        if whole:
            self._write(b"data: [DONE]\n\n")
        self._write(b"")
        self._handler.connection.settimeout(None)

    def _begin(self) -> None:
        handler = self._handler
        self._begun = True
        handler.connection.settimeout(_PAUSE_SECONDS)
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()

    def _write(self, data: bytes) -> None:
        """Write one chunk; an empty one ends the answer."""
        try:
            self._handler.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
            self._handler.wfile.flush()
        except OSError as error:  # a slow client's time-out as well
            raise CallerGone from error
