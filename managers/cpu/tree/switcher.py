"""Client of the switch program: one process for all environments of a driver, started when it is needed.

The program is kept for some time: starting Python takes longer than a switch. It ends when its input ends, so
it does not outlive the worker.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from domain.errors import Conflict, Unavailable
from managers.cpu.tree import switch

_SECONDS: Final = 30.0
#: The program ends after this time without a request.
IDLE_SECONDS: Final = 120.0


class RootSwitcher:
    """Switches roots of environments; its methods block and may be called from any thread."""

    def __init__(self, idle_seconds: float = IDLE_SECONDS) -> None:
        self._idle_seconds = idle_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()

    def switch(self, pid: int, lowers: Sequence[Path], upper: Path, work: Path) -> float:
        """Give the environment of process ``pid`` an overlay as its root; return the seconds that it took.

        ``lowers`` with the topmost first. Raises Conflict while a program has a file open for writing,
        Unavailable.
        """
        below = [str(each) for each in lowers]
        request = {"pid": pid, "lowers": below, "upper": str(upper), "work": str(work)}
        return float(self._ask(request)["seconds"])

    def switch_to(self, pid: int, namespace: int, path: str) -> float:
        """Give it the mount at ``path`` in a mount namespace, a descriptor of this process, as its root."""
        prepared = f"/proc/{os.getpid()}/fd/{namespace}"
        return float(self._ask({"pid": pid, "prepared": prepared, "at": path})["seconds"])

    def begin(self) -> None:
        """Start the program, so that it is ready when a root is to be switched."""
        with self._lock, contextlib.suppress(OSError):  # else the switch fails with it
            self._running()
            self._end_when_idle()

    def check_quiet(self, pid: int) -> None:
        """Raise Conflict while a program of an environment has a file open for writing."""
        self._ask({"pid": pid, "check": True})

    def seal(self, pid: int, paths: Sequence[str]) -> None:
        """Make the files at these mounts read-only for the programs of an environment, until `unseal`.

        A path that is no mount, or is in memory, is left out. Raises Conflict while a program has a file open
        for writing, Unavailable.
        """
        self._ask({"pid": pid, "seal": True, "paths": list(paths)})

    def unseal(self, pid: int, paths: Sequence[str]) -> None:
        """Make them writable again. Raises Unavailable."""
        self._ask({"pid": pid, "seal": False, "paths": list(paths)})

    def close(self) -> None:
        """End the program."""
        with self._lock:
            self._end()

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            line = self._exchange(json.dumps(request).encode() + b"\n")
            self._end_when_idle()
        answer: dict[str, Any] = json.loads(line)
        if answer["ok"]:
            return answer
        if answer["busy"]:
            raise Conflict("a program has a file open for writing", code="busy_environment")
        raise Unavailable(f"the root of the environment cannot be changed: {answer['error']}")

    def _end_when_idle(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = threading.Timer(self._idle_seconds, self.close)
        self._timer.daemon = True
        self._timer.start()

    def _exchange(self, line: bytes) -> bytes:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(line)
            process.stdin.flush()
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                answer = process.stdout.readline() if selector.select(_SECONDS) else b""
        except OSError:
            answer = b""
        if not answer:
            self._end()
            raise Unavailable("the program that changes roots of environments does not answer")
        return answer

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", switch.__file__],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"PATH": os.defpath},
            )  # fmt: skip
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if process is not None:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            process.wait()
            process.stdout.close()
