"""Action server of an agent, inside the environment: one process that edits files and has a kernel for cells.

    python3 -u -c SERVER EDITOR KERNEL [SOCKET]

A request is a line of JSON: ``id``, ``tool`` (``ipython`` or ``editor``), ``arguments``, ``seconds``. Its answer is one line:
``status``, ``output`` and at last ``end``, the request's id. Requests come on standard input and on a unix socket, whose path is in
``TANGRAM_ACTION_SOCKET`` of the kernel. Standard library only.

Rules
1. The status never comes from output: what a cell and its programs print is read from pipes by the kernel, and is a text in the
   answer. ``ok``, ``error`` (the code raised, or an edit was refused), ``timeout``, ``died`` (the kernel ended).
2. One cell runs at a time, the others wait. Edits wait for no cell.
3. A cell that takes longer than its ``seconds`` is interrupted with the programs that it started, then killed. After that, and
   after any other end of the kernel, the next cell has a new one, without variables.
4. Of long output the beginning and the end are kept.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
from collections import deque
from collections.abc import Callable
from typing import Any

#: Characters that are kept of one output: a third is the beginning.
KEPT = 30000
MAX_LINE_BYTES = 16 * 1024 * 1024
#: Bytes of one read; memory of more would be mapped for each.
READ_BYTES = 64 * 1024
#: A kernel has so long after an interrupt.
GRACE_SECONDS = 3.0
#: Members of a result that are images, and the media types that a cell's answer mentions: asking objects for more takes time.
IMAGES = ("png", "jpeg", "svg", "pdf")
SHOWN = ("text/plain", "image/png", "image/jpeg", "image/svg+xml", "application/pdf")


class KeptText:
    """The beginning and the end of a text that arrives in pieces."""

    def __init__(self, limit: int = KEPT) -> None:
        self._head_limit, self._tail_limit = limit // 3, limit - limit // 3
        self._head, self._tail = "", ""
        self._seen = 0

    def add(self, text: str) -> None:
        """Add a piece."""
        self._seen += len(text)
        room = self._head_limit - len(self._head)
        self._head += text[:room]
        self._tail += text[max(0, room) :]
        if len(self._tail) > 2 * self._tail_limit:
            self._tail = self._tail[-self._tail_limit :]

    def text(self) -> str:
        """Return what is kept, with a note where something is missing."""
        tail = self._tail[-self._tail_limit :]
        missing = self._seen - len(self._head) - len(tail)
        if missing <= 0:
            return self._head + tail
        return f"{self._head}\n[{missing} of {self._seen} characters are left out here]\n{tail}"


class Lines:
    """Splits what arrives into lines."""

    def __init__(self) -> None:
        self._unread = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that are complete. Raises ValueError for one that is too long."""
        *lines, self._unread = (self._unread + data).split(b"\n")
        if len(self._unread) > MAX_LINE_BYTES:
            raise ValueError("a line is too long")
        return lines


class ServedCell:
    """A cell that runs or waits, and what it has shown."""

    def __init__(self, request: dict[str, Any], answer: Callable[[dict[str, Any]], None]) -> None:
        self.request, self.answer = request, answer
        self.shown = KeptText()
        self.status = "ok"
        #: When it is interrupted, and later killed.
        self.deadline = 0.0
        self.interrupted = False

    def take(self, event: dict[str, Any]) -> None:
        """Take an event of the kernel."""
        kind = event.get("type")
        if kind in ("stdout", "stderr"):
            self.shown.add(event["text"])
        elif kind == "result":
            if "text" in event:
                self.shown.add(event["text"] + "\n")
            for name in IMAGES:
                if name in event:
                    self.shown.add(f"[an image, {name}]\n")
        elif kind == "error":
            self.status = "error"
            self.shown.add(event["traceback"].rstrip("\n") + "\n")


class Kernel:
    """The process that executes cells; it starts with the first one."""

    def __init__(self, program: str, environment: dict[str, Any]) -> None:
        self._program, self._environment = program, environment
        self._process: Any = None
        self.connection: Any = None
        self._lines = Lines()

    def begin(self, request: dict[str, Any]) -> None:
        """Send a cell, to a new process where there is none. Raises OSError."""
        if self._process is None:
            self.connection, theirs = socket.socketpair()
            self._lines = Lines()
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-c", self._program, *SHOWN],
                stdin=theirs.fileno(), stdout=theirs.fileno(), env=self._environment, start_new_session=True,
            )  # fmt: skip
            theirs.close()
        code = request["arguments"]["code"]
        line = json.dumps({"id": request["id"], "code": code, "envs": {}}).encode()
        self.connection.sendall(line + b"\n")

    def events(self) -> Any:
        """Return the events that have arrived; None at its end."""
        try:
            data = self.connection.recv(READ_BYTES)
        except OSError:
            data = b""
        return [json.loads(line) for line in self._lines.feed(data)] if data else None

    def signal(self, number: int) -> None:
        """Send a signal to it and what it started."""
        try:
            os.killpg(self._process.pid, number)
        except OSError:
            pass

    def end(self) -> int:
        """End what is left of it, and return its exit status: below 0, the signal."""
        self.signal(signal.SIGKILL)
        status = int(self._process.wait())
        self.connection.close()
        self._process = self.connection = None
        return status


class RequestServer:
    """Answers requests until standard input ends."""

    def __init__(self, editor: Any, kernel: Kernel, listener: Any = None) -> None:
        """``editor``: the module of the editor; ``listener``: a listening socket."""
        self._refused, self._editor = editor.EditRefused, editor.Editor()
        self._kernel = kernel
        self._waiting: deque[ServedCell] = deque()
        self._cell: Any = None
        self._selector = selectors.DefaultSelector()
        if listener is not None:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, lambda: self._accept(listener))

    def read_standard_input(self) -> None:
        """Take requests from standard input, and end with it."""
        lines, out = Lines(), os.dup(1)

        def arrived() -> None:
            data = os.read(0, READ_BYTES)
            if not data:
                raise SystemExit
            self._take(lines.feed(data), lambda answer: _write_all(out, _line(answer)))

        self._selector.register(0, selectors.EVENT_READ, arrived)

    def serve(self) -> None:
        """Serve for ever."""
        while True:
            left = None
            if self._cell is not None and self._cell.deadline:
                left = max(0.0, self._cell.deadline - time.monotonic())
            for key, _ in self._selector.select(left):
                key.data()
            self._check_deadline()

    def close(self) -> None:
        """End the kernel."""
        if self._kernel.connection is not None:
            self._kernel.end()

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        lines = Lines()

        def send(answer: dict[str, Any]) -> None:
            try:
                connection.sendall(_line(answer))
            except OSError:  # its client is gone
                pass

        def arrived() -> None:
            try:
                data = connection.recv(READ_BYTES)
                self._take(lines.feed(data), send)
            except (OSError, ValueError):
                data = b""
            if not data:
                self._selector.unregister(connection)
                connection.close()

        self._selector.register(connection, selectors.EVENT_READ, arrived)

    def _take(self, lines: list[bytes], answer: Callable[[dict[str, Any]], None]) -> None:
        for line in lines:
            try:
                request = json.loads(line)
                request["id"], request["tool"], request["arguments"]
            except (ValueError, TypeError, KeyError, RecursionError):
                continue
            if request["tool"] == "editor":
                answer(self._edit(request))
            else:
                self._waiting.append(ServedCell(request, answer))
        self._next()

    def _edit(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            status, output = "ok", self._editor.run(request["arguments"])
        except self._refused as error:
            status, output = "error", str(error)
        except Exception as error:
            status, output = "error", f"{type(error).__name__}: {error}"
        kept = KeptText()
        kept.add(output)
        return {"status": status, "output": kept.text(), "end": request["id"]}

    def _next(self) -> None:
        while self._cell is None and self._waiting:
            cell = self._cell = self._waiting.popleft()
            before = self._kernel.connection
            try:
                self._kernel.begin(cell.request)
            except OSError as error:
                cell.shown.add(f"{error}\n")
                self._died()
                continue
            except (KeyError, TypeError, ValueError) as error:
                cell.status = "error"
                cell.shown.add(f"{type(error).__name__}: {error}\n")
                self._answer()
                continue
            if self._kernel.connection is not before:
                self._selector.register(
                    self._kernel.connection, selectors.EVENT_READ, self._kernel_said
                )
            seconds = cell.request.get("seconds")
            cell.deadline = time.monotonic() + seconds if seconds else 0.0

    def _kernel_said(self) -> None:
        events = self._kernel.events()
        if events is None:
            self._died()
            self._next()
            return
        for event in events:
            cell = self._cell
            if cell is None:
                continue  # a thread of an earlier cell prints
            if event.get("end") == cell.request["id"]:
                if cell.interrupted:
                    cell.status = "timeout"
                self._answer()
                self._next()
            else:
                cell.take(event)

    def _died(self) -> None:
        """Answer for a kernel that has ended."""
        if self._kernel.connection is not None:
            try:
                self._selector.unregister(self._kernel.connection)
            except KeyError:
                pass
            status = self._kernel.end()
        else:
            status = 0
        cell = self._cell
        if cell is not None:
            cell.status = "timeout" if cell.interrupted else "died"
            self._answer(died=status)

    def _answer(self, **members: Any) -> None:
        cell, self._cell = self._cell, None
        answer = {"status": cell.status, "output": cell.shown.text(), **members}
        cell.answer({**answer, "end": cell.request["id"]})

    def _check_deadline(self) -> None:
        cell = self._cell
        if cell is None or not cell.deadline or time.monotonic() < cell.deadline:
            return
        if cell.interrupted:
            self._kernel.signal(signal.SIGKILL)
            cell.deadline = 0.0
        else:
            cell.interrupted, cell.deadline = True, time.monotonic() + GRACE_SECONDS
            self._kernel.signal(signal.SIGINT)


def unix_listener(path: str) -> socket.socket:
    """Return a socket that listens at a path, which only its user reaches. Raises OSError."""
    if os.path.lexists(path):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    os.chmod(path, 0o600)
    listener.listen(16)
    return listener


def loaded(name: str, program: str) -> types.ModuleType:
    """Return a program as a module."""
    module = types.ModuleType(name)
    exec(compile(program, f"<{name}>", "exec"), module.__dict__)
    return module


def _line(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer).encode() + b"\n"


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def main(editor: str, kernel: str, path: str = "") -> None:
    """Serve until standard input ends."""
    folder = "" if path else tempfile.mkdtemp(prefix="tangram-actions-")
    path = path or os.path.join(folder, "socket")
    environment = {**os.environ, "TANGRAM_ACTION_SOCKET": path}
    server = RequestServer(
        loaded("editor", editor), Kernel(kernel, environment), unix_listener(path)
    )
    server.read_standard_input()
    # An ignored signal would be ignored by the kernel, too.
    signal.signal(signal.SIGINT, lambda *_: None)
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))
    try:
        server.serve()
    finally:
        server.close()
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
