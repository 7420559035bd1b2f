"""Kernel of Python: executes cells in one namespace, inside the environment.

Standard library only, with IPython where it is installed. A request is a line of JSON on standard input: ``id``,
``code``, ``envs``. Events are lines of JSON on standard output, with the ``id`` of their request; after the last one
comes ``{"end": id}``. What the code and its subprocesses write is read from pipes and becomes events. Arguments of the
program are the media types that IPython asks objects for; without one, all.
"""

from __future__ import annotations

import array
import ast
import base64
import codecs
import fcntl
import importlib.util
import json
import os
import select
import sys
import termios
import textwrap
import threading
import time
import traceback
from typing import Any

#: Members of a result by the media type that an object shows itself as.
MEMBERS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
}
_METHODS = {
    "_repr_html_": "text/html",
    "_repr_markdown_": "text/markdown",
    "_repr_svg_": "image/svg+xml",
    "_repr_png_": "image/png",
    "_repr_jpeg_": "image/jpeg",
    "_repr_latex_": "text/latex",
    "_repr_json_": "application/json",
}


class Events:
    """Writes events, and what arrives in the pipes of the standard streams.

    A pipe is read, and what was read becomes an event, under one lock: so all that was written before a `drain` is an event behind it.
    """

    def __init__(self) -> None:
        self._out = os.dup(1)
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._streams: list[tuple[str, int, codecs.IncrementalDecoder]] = []
        self.id = ""
        self._later = b""

    def write(self, event: dict[str, Any], *, later: bool = False) -> None:
        """Write one event; ``later``: together with the next one, which follows at once."""
        data = json.dumps(event, default=str).encode() + b"\n"
        with self._lock:
            data, self._later = self._later + data, b""
            if later:
                self._later = data
                return
            while data:
                data = data[os.write(self._out, data) :]

    def tell(self, kind: str, **members: Any) -> None:
        """Write an event of the present execution, behind what was printed before it."""
        if kind in ("result", "error"):
            self.drain()
        last = kind == "result" and members["is_main_result"]
        self.write({"id": self.id, "type": kind, **members}, later=last)

    def capture(self, name: str, descriptor: int) -> None:
        """Read a standard stream from now on."""
        reader, writer = os.pipe()
        os.dup2(writer, descriptor)
        os.close(writer)
        stream = (name, reader, codecs.getincrementaldecoder("utf-8")("replace"))
        self._streams.append(stream)
        threading.Thread(target=self._pump, args=stream, daemon=True).start()

    def drain(self) -> None:
        """Make events of all that was written before this call."""
        sys.stdout.flush()
        sys.stderr.flush()
        for stream in self._streams:
            self._take(*stream)

    def _take(self, name: str, reader: int, decoder: codecs.IncrementalDecoder) -> None:
        """Make an event of what is in a pipe now; a writer that never ends does not hold it up."""
        with self._reading:
            size = array.array("i", [0])
            fcntl.ioctl(reader, termios.FIONREAD, size)
            text = decoder.decode(os.read(reader, size[0])) if size[0] else ""
            if text:
                self.tell(name, text=text, timestamp=time.time_ns())

    def _pump(self, name: str, reader: int, decoder: codecs.IncrementalDecoder) -> None:
        arrived = select.poll()
        arrived.register(reader, select.POLLIN)
        while arrived.poll()[0][1] & select.POLLIN:  # else the code closed its standard stream
            self._take(name, reader, decoder)


def result_of(data: dict[str, Any], *, main: bool) -> dict[str, Any]:
    """Return the members of a result for what an object shows itself as, by media type."""
    members: dict[str, Any] = {"is_main_result": main}
    extra = {}
    for kind, content in data.items():
        if isinstance(content, bytes):
            content = base64.b64encode(content).decode()
        if kind in MEMBERS:
            members[MEMBERS[kind]] = content
        else:
            extra[kind] = content
    text = members.get("text")
    if isinstance(text, str) and len(text) > 1 and text[0] == text[-1] == "'":
        members["text"] = text[1:-1]
    if extra:
        members["extra"] = extra
    return members


class PlainCells:
    """Executes cells without IPython."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._count = 0
        self._names: dict[str, Any] = {"__name__": "__main__", "display": self._display}

    @property
    def count(self) -> int:
        """Number of the next execution."""
        return self._count + 1

    def run(self, code: str) -> None:
        """Execute a cell; the value of an expression at its end is the main result."""
        self._count += 1
        try:
            tree = ast.parse(textwrap.dedent(code), "<cell>")
            last = tree.body[-1] if tree.body else None
            if isinstance(last, ast.Expr):
                tree.body.pop()
            exec(compile(tree, "<cell>", "exec"), self._names)
            if isinstance(last, ast.Expr):
                expression = ast.Expression(last.value)
                value = eval(compile(expression, "<cell>", "eval"), self._names)
                if value is not None:
                    self._names["_"] = value
                    self._show(value, main=True)
        except BaseException as error:  # SystemExit and KeyboardInterrupt end the cell alone
            frames = error.__traceback__
            while frames is not None and frames.tb_frame.f_code.co_filename != "<cell>":
                frames = frames.tb_next
            text = "".join(traceback.format_exception(type(error), error, frames))
            self._events.tell("error", name=type(error).__name__, value=str(error), traceback=text)

    def _display(self, *values: Any, raw: bool = False, **_: Any) -> None:
        for value in values:
            if raw:
                self._events.tell("result", **result_of(value, main=False))
            else:
                self._show(value, main=False)

    def _show(self, value: Any, *, main: bool) -> None:
        data: dict[str, Any] = {"text/plain": repr(value)}
        for method, kind in _METHODS.items():
            show = getattr(type(value), method, None)
            content = None if show is None else show(value)
            if content is not None:
                data[kind] = content[0] if isinstance(content, tuple) else content
        self._events.tell("result", **result_of(data, main=main))


def ipython_cells(events: Events) -> Any:
    """Return what executes cells with IPython. Raises ImportError where it is not installed."""

    def part(module: str, name: str) -> Any:
        return getattr(importlib.import_module(f"IPython.core.{module}"), name)

    publisher: Any = part("displaypub", "DisplayPublisher")
    hook: Any = part("displayhook", "DisplayHook")
    base: Any = part("interactiveshell", "InteractiveShell")

    class Publisher(publisher):  # type: ignore[misc]
        """Makes results of what is displayed."""

        def publish(self, data: Any, *_: Any, **__: Any) -> None:
            """Publish one object."""
            events.tell("result", **result_of(data, main=False))

    class Hook(hook):  # type: ignore[misc]
        """Makes the main result of a cell's value."""

        def write_output_prompt(self) -> None:
            """Write nothing."""

        def write_format_data(self, data: Any, _: Any = None) -> None:
            """Write the value."""
            events.tell("result", **result_of(data, main=True))

        def finish_displayhook(self) -> None:
            """Write nothing."""

    class Shell(base):  # type: ignore[misc]
        """Executes cells; errors become events."""

        @property
        def count(self) -> int:
            """Number of the next execution."""
            return int(self.execution_count)

        def run(self, code: str) -> None:
            """Execute a cell."""
            self.run_cell(code, store_history=True)

        def _showtraceback(self, etype: Any, evalue: Any, stb: Any) -> None:
            events.tell("error", name=etype.__name__, value=str(evalue), traceback="\n".join(stb))

    if importlib.util.find_spec("matplotlib_inline"):
        os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    Shell.displayhook_class = Hook
    Shell.display_pub_class = Publisher
    shell = Shell.instance(colors="NoColor")
    shell.history_manager.enabled = False
    shell.display_formatter.active_types = sys.argv[1:] or shell.display_formatter.active_types
    del sys.argv[1:]
    return shell


def main() -> None:
    """Execute the requests until standard input ends."""
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    events = Events()
    for name, number in (("stdout", 1), ("stderr", 2)):
        events.capture(name, number)
        getattr(sys, name).reconfigure(line_buffering=True, write_through=False)
    try:
        cells = ipython_cells(events)
    except ImportError:
        cells = PlainCells(events)
    while True:
        try:
            line = requests.readline()
            if not line:
                return
            _execute(events, cells, json.loads(line))
        except KeyboardInterrupt:  # between two executions
            continue


def _execute(events: Events, cells: Any, request: dict[str, Any]) -> None:
    events.id = request["id"]
    events.tell("number_of_executions", execution_count=cells.count)
    before = {name: os.environ.get(name) for name in request["envs"]}
    os.environ.update(request["envs"])
    try:
        cells.run(request["code"])
    except KeyboardInterrupt:
        events.tell("error", name="KeyboardInterrupt", value="", traceback="KeyboardInterrupt\n")
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        events.drain()
        events.write({"end": request["id"]})


if __name__ == "__main__":
    main()
