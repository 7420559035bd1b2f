"""The guard of an instance leaves no process, however the process that started it ends."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from managers.launch import process_guard
from tests.conformance.launchers.suite import lives, until

pytestmark = pytest.mark.slow

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_SOURCE = Path(process_guard.__file__).read_text()
#: Has a child that left its session and its parent, as daemons do, and says who they are.
_WORKER = """
import json, os, signal, subprocess, sys, time
path, way = sys.argv[1:]
daemon = subprocess.run(
    [sys.executable, "-c", "import os, sys, time\\nif os.fork(): os._exit(0)\\nos.setsid()\\nprint(os.getpid(), flush=True)\\nos.close(1)\\ntime.sleep(600)"],
    stdout=subprocess.PIPE, text=True,
)
if way == "stubborn":
    signal.signal(signal.SIGTERM, lambda *_: open(path + ".asked", "w").close())
with open(path + ".part", "w") as file:
    json.dump([os.getpid(), int(daemon.stdout)], file)
os.rename(path + ".part", path)
if way == "ends":
    sys.exit(7)
while True:
    time.sleep(600)
"""


class Started:
    """A guard, and its end of the socket."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "pids.json"
        self.channel, its = socket.socketpair()
        subprocess.run([sys.executable, "-I", "-c", _SOURCE], stdin=its.fileno(), check=True)
        its.close()
        self.lines = self.channel.makefile()

    def order(self, way: str, command: list[str] | None = None) -> None:
        command = command or [sys.executable, "-c", _WORKER, str(self.path), way]
        line = {"command": command, "environment": {"PATH": os.environ["PATH"]}}
        self.channel.sendall(json.dumps(line).encode() + b"\n")

    def says(self) -> Any:
        return json.loads(self.lines.readline())

    def pids(self) -> list[int]:
        until(self.path.exists)
        found: list[int] = json.loads(self.path.read_text())
        assert all(lives(pid) for pid in found)
        return found

    def close(self) -> None:
        self.lines.close()
        self.channel.close()


@pytest.fixture
def no_subreaper() -> Iterator[None]:
    """This process adopts no orphans; drivers of other tests made it a child subreaper, as a Ray worker is none."""
    libc, was = ctypes.CDLL(None), ctypes.c_int()
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(was), 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    yield
    libc.prctl(_PR_SET_CHILD_SUBREAPER, was.value, 0, 0, 0)


@pytest.fixture
def guard(tmp_path: Path) -> Iterator[Started]:
    started = Started(tmp_path)
    yield started
    started.close()


def test_all_processes_end_with_the_process_that_started_the_guard(guard: Started) -> None:
    guard.order("runs")
    pids = guard.pids()
    guard.close()
    until(lambda: not any(lives(pid) for pid in pids))


def test_the_last_line_is_said_once_nothing_is_left(guard: Started) -> None:
    guard.order("runs")
    started = guard.says()["started"]
    pids = guard.pids()
    assert started == pids[0]
    guard.channel.sendall(b"end\n")
    assert guard.says() == {"ended": -signal.SIGTERM}
    assert not any(lives(pid) for pid in pids)


def test_a_node_worker_may_end_in_order_before_it_is_killed(guard: Started, tmp_path: Path) -> None:
    guard.order("stubborn")
    pids = guard.pids()
    guard.channel.sendall(b"end\n")
    until((tmp_path / "pids.json.asked").exists)
    assert all(lives(pid) for pid in pids)
    os.kill(pids[0], signal.SIGKILL)  # the rest of the grace period is not waited for
    guard.says()
    assert guard.says() == {"ended": -signal.SIGKILL}
    assert not any(lives(pid) for pid in pids)


def test_a_node_worker_that_ends_takes_along_what_it_left(guard: Started) -> None:
    guard.order("ends")
    guard.says()
    assert guard.says() == {"ended": 7}
    until(guard.path.exists)
    assert not any(lives(pid) for pid in json.loads(guard.path.read_text()))


def test_the_guard_is_no_child_of_the_process_that_started_it(
    no_subreaper: None, guard: Started
) -> None:
    guard.order("runs")
    worker = guard.says()["started"]
    assert worker not in process_guard.below(os.getpid())


def test_a_command_that_does_not_exist_is_named(guard: Started) -> None:
    guard.order("", ["/nowhere/python"])
    assert "/nowhere/python" in guard.says()["failed"]
    assert guard.lines.readline() == ""
