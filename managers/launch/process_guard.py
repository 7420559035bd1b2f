"""Guard of an instance: starts the node worker, and ends all processes below it. Run by the Python of the engine.

Theory of operation. The engine's own process (an actor of Ray) starts this file's text by ``python -I -c``, with a socket as standard
input. The guard leaves it at once: it is in a session of its own and no child of the engine's process, so that an engine that kills
what it started does not kill the guard before it has cleaned up. It is a child subreaper: processes of the node worker whose parents
die become its children, whatever session they are in.

1. First line of the socket: the order, ``{"command", "environment"}``. The guard answers ``{"started": pid}``, or ``{"failed": why}``.
2. A line ``end``, SIGTERM, or the end of the socket, which is the death of the engine's process: the node worker gets SIGTERM, and
   `GRACE_SECONDS` to end its environments in order. Then all processes below the guard are killed, until it has no children.
3. The node worker ends by itself: the same, without the grace.
4. The guard's last line is ``{"ended": exit code}``; nothing is left then. Without that line the guard was killed itself.

It uses the standard library alone and runs under Python 3.9 and later.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from typing import Any

#: Longest orderly end of a node worker.
GRACE_SECONDS = 15.0
_PAUSE_SECONDS = 0.05
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None)


class ProcessGuard:
    """The guard of one node worker."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._received = b""
        self._exit_code: int | None = None
        self._worker = 0
        #: Signals are bytes in it, so that one wait is for all.
        self._signals, written = os.pipe()
        os.set_blocking(self._signals, False)
        os.set_blocking(written, False)
        signal.set_wakeup_fd(written, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._asked)
        self._is_asked = False

    def run(self) -> None:
        """Start the node worker, wait for its end or for a reason to end it, and leave no process."""
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        order = self._read_order()
        if order is None:
            return
        try:
            self._worker = _start(order)
        except OSError as error:
            self._say({"failed": str(error)})
            return
        self._say({"started": self._worker})
        while not (self._is_asked or self._has_ended()):
            self._wait(None)
        if not self._has_ended():
            self._end_in_order()
        self._kill_all()
        self._say({"ended": self._exit_code})

    def _read_order(self) -> dict[str, Any] | None:
        while b"\n" not in self._received:
            if self._is_asked:
                return None
            self._wait(None)
        line, _, self._received = self._received.partition(b"\n")
        order: dict[str, Any] = json.loads(line)
        return order

    def _end_in_order(self) -> None:
        os.kill(self._worker, signal.SIGTERM)  # it is not reaped yet, so the number is its own
        until = time.monotonic() + GRACE_SECONDS
        while not self._has_ended() and (left := until - time.monotonic()) > 0:
            self._wait(left)

    def _kill_all(self) -> None:
        while True:
            # A child that dies passes its children on to the guard, so the next round finds them.
            for pid in below(os.getpid()):
                try:
                    os.kill(pid, signal.SIGKILL)
                except (ProcessLookupError, PermissionError):
                    continue
            if not self._reap():
                return
            time.sleep(_PAUSE_SECONDS)

    def _has_ended(self) -> bool:
        self._reap()
        return self._exit_code is not None

    def _reap(self) -> bool:
        """Collect dead children; return whether there are others."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._worker:
                self._exit_code = os.waitstatus_to_exitcode(status)

    def _wait(self, seconds: float | None) -> None:
        """Wait for a line, the end of the socket or a signal."""
        # After the end of the socket there is nothing more to read.
        watched: list[Any] = [self._signals] if self._is_asked else [self._signals, self._channel]
        ready, _, _ = select.select(watched, [], [], seconds)
        if self._signals in ready:
            os.read(self._signals, 512)
        if self._channel not in ready:
            return
        try:
            read = self._channel.recv(65536)
        except ConnectionError:
            read = b""
        self._received += read
        if not read or (self._worker and b"end\n" in self._received):
            self._is_asked = True

    def _asked(self, *_: object) -> None:
        self._is_asked = True

    def _say(self, fact: dict[str, Any]) -> None:
        try:
            self._channel.sendall(json.dumps(fact).encode() + b"\n")
        except OSError:
            pass  # the engine's process is dead, and the guard ends all the same


def _start(order: dict[str, Any]) -> int:
    """Start the node worker in a session of its own; it dies with the guard. Raises OSError."""
    process = subprocess.Popen(
        order["command"],
        env=order["environment"],
        cwd="/",
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
    )
    return process.pid


def below(top: int) -> list[int]:
    """Return the processes below one, dead ones that are not collected yet aside."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                # The name of a program may contain anything; the last parenthesis closes it.
                state, parent = file.read().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state not in "ZX":
            children.setdefault(int(parent), []).append(int(name))
    found: list[int] = []
    new = [top]
    while new:
        new = [child for parent in new for child in children.get(parent, ())]
        found += new
    return found


def main() -> None:
    """Leave the process that started us, and guard."""
    if os.fork():
        os._exit(0)
    os.setsid()
    ProcessGuard(socket.socket(fileno=os.dup(0))).run()
    sys.stdout.flush()


if __name__ == "__main__":
    main()
