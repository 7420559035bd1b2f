"""Model relay: runs an agent's command beside a server of OpenAI's protocol that has no network of its own.

    python3 -I model_relay.py PORT CONTROL_PORT -- COMMAND…      # writes model_relay.py.json, its mark

Put into the environment of RUN by the handler ``foreign``, with the standard library alone. The agent calls it on the loopback of
its environment; the handler connects to its control port from outside (`Job.connect`), takes the calls there and sends their
answers. So an environment without a network stays without one, and holds no token.

Frames on the control connection: u32 big-endian length, then JSON. To the handler ``{"id", "name", "path", "method",
"repeated", "body"}``; back ``{"id", "status", "type", "body"}``.

Rules
1. Calls that have no answer when the connection ends are sent again on the next one, under the same names. A handler that reads
   no further leaves them here.
2. It ends with the status of the command, which gets its signals.
3. It serves on the loopback address of its environment (``TANGRAM_LOOPBACK``, else 127.0.0.1), on other ports where these are taken;
   the command's variables name the address. Its mark says ``{"port", "control_port"}``, from before the command starts. A
   command that cannot be started has no mark.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_LENGTH = struct.Struct(">I")
MAX_BODY_BYTES = 32 * 1024 * 1024
#: Variable with the loopback address of an environment that shares the node's network.
LOOPBACK = "TANGRAM_LOOPBACK"
#: Variables of the command that name the relay.
ADDRESSES = ("OPENAI_BASE_URL", "OPENAI_API_BASE")


class Relay:
    """Calls of the agent that wait for an answer, and the connection to the handler."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._calls: dict[int, dict[str, Any]] = {}
        self._answers: dict[int, dict[str, Any]] = {}
        #: Numbers of calls that the present connection has not sent.
        self._unsent: deque[int] = deque()
        self._last = 0
        self._connection: socket.socket | None = None
        #: In front of the names of this start's calls.
        self._start = secrets.token_hex(8)

    def ask(self, call: dict[str, Any]) -> dict[str, Any]:
        """Send a call and return its answer, however often the handler begins again meanwhile."""
        with self._lock:
            self._last += 1
            number = self._last
            self._calls[number] = {"id": number, "name": f"{self._start}-{number}", **call}
            self._unsent.append(number)
            self._lock.notify_all()
            while number not in self._answers:
                self._lock.wait()
            del self._calls[number]
            return self._answers.pop(number)

    def serve(self, connection: socket.socket) -> None:
        """Serve a handler until its connection ends; it replaces the one before."""
        with self._lock:
            if self._connection is not None:
                with contextlib.suppress(OSError):
                    self._connection.shutdown(socket.SHUT_RDWR)
            self._connection = connection
            self._unsent = deque(self._calls)
            self._lock.notify_all()
        # Apart from the answers: a handler that reads no further call still answers.
        threading.Thread(target=self._send_calls, args=(connection,), daemon=True).start()
        with connection, contextlib.suppress(OSError, ValueError, EOFError):
            stream = connection.makefile("rb")
            while True:
                (length,) = _LENGTH.unpack(_exactly(stream, _LENGTH.size))
                answer = json.loads(_exactly(stream, length))
                with self._lock:
                    if answer.get("id") in self._calls:
                        self._answers[answer["id"]] = answer
                        self._lock.notify_all()
        with self._lock:
            if self._connection is connection:
                self._connection = None
                self._lock.notify_all()

    def _send_calls(self, connection: socket.socket) -> None:
        """Send the calls in their order while a connection is the present one."""
        while True:
            with self._lock:
                while self._connection is connection and not self._unsent:
                    self._lock.wait()
                if self._connection is not connection:
                    return
                call = self._calls.get(self._unsent.popleft())
            if call is None or call["id"] in self._answers:
                continue
            frame = json.dumps(call).encode()
            try:
                connection.sendall(_LENGTH.pack(len(frame)) + frame)
            except OSError:  # the next connection gets it
                return


def _exactly(stream: Any, count: int) -> bytes:
    data: bytes = stream.read(count)
    if len(data) < count:
        raise EOFError
    return data


class AgentRequests(BaseHTTPRequestHandler):
    """Requests of the agent."""

    relay: Relay
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Pass a request without a body on."""
        self._pass_on(None)

    def do_POST(self) -> None:
        """Pass a request with its body on."""
        size = int(self.headers.get("Content-Length") or 0)
        if size > MAX_BODY_BYTES:
            self.close_connection = True
            self._answer(
                413, "application/json", b'{"error": {"message": "the body is too large"}}'
            )
            return
        try:
            body = json.loads(self.rfile.read(size) or b"null")
        except (ValueError, RecursionError):
            self._answer(400, "application/json", b'{"error": {"message": "the body is no JSON"}}')
            return
        self._pass_on(body)

    def _pass_on(self, body: Any) -> None:
        repeated = (self.headers.get("x-stainless-retry-count") or "0").strip("0 ") != ""
        path = self.path.partition("?")[0]
        call = {"method": self.command, "path": path, "repeated": repeated, "body": body}
        answer = self.relay.ask(call)
        self._answer(int(answer["status"]), str(answer["type"]), str(answer["body"]).encode())

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        with contextlib.suppress(OSError):  # the agent has given up
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Write nothing: the output is the agent's."""


class RelayServer(ThreadingHTTPServer):
    """Serves the agent, which may make many calls at once: with the usual queue of 5, others were reset."""

    request_queue_size = 1024
    daemon_threads = True


def _accept(listening: socket.socket, relay: Relay) -> None:
    while True:
        connection, _ = listening.accept()
        threading.Thread(target=relay.serve, args=(connection,), daemon=True).start()


def _bound(make: Any, address: str, port: int) -> Any:
    """Return a server on a port of the address, or on another one where it is taken."""
    try:
        return make((address, port))
    except OSError:
        return make((address, 0))


def _write_mark(mark: str, ports: dict[str, int]) -> None:
    with open(f"{mark}.draft", "w") as draft:
        json.dump(ports, draft)
    os.replace(f"{mark}.draft", mark)


def _variables(address: str, stated: int, port: int) -> dict[str, str]:
    """Return the variables of the command, which name the address that is served."""
    found = dict(os.environ)
    before, now = f"http://127.0.0.1:{stated}/", f"http://{address}:{port}/"
    for name in ADDRESSES:
        if found.get(name, "").startswith(before):
            found[name] = now + found[name][len(before) :]
    return found


def main(port: int, control_port: int, command: list[str], mark: str) -> int:
    """Run the command with the relay beside it; return its status."""
    AgentRequests.relay = relay = Relay()
    address = os.environ.get(LOOPBACK) or "127.0.0.1"
    server = _bound(lambda at: RelayServer(at, AgentRequests), address, port)
    control = _bound(socket.create_server, address, control_port)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    threading.Thread(target=_accept, args=(control, relay), daemon=True).start()
    served = server.server_address[1]
    _write_mark(mark, {"port": served, "control_port": control.getsockname()[1]})
    try:
        agent = subprocess.Popen(command, env=_variables(address, port, served))
    except OSError as error:
        os.unlink(mark)
        sys.stderr.write(f"the agent cannot be started: {error}\n")
        return 127
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: agent.send_signal(received))
    status = agent.wait()
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    _after = sys.argv.index("--")
    _ports = [int(each) for each in sys.argv[1:_after]]
    _status = main(
        _ports[0], _ports[1], sys.argv[_after + 1 :], f"{os.path.abspath(__file__)}.json"
    )
    sys.stdout.flush()
    os._exit(_status)  # threads that serve an agent's children
