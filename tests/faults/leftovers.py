"""Processes and mounts that a system of a test leaves when parts of it were killed: they are ended with the system.

A process belongs to the system when its command or environment names the system's folder, or when it is below such a one, as
the commands in a sandbox are.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil

from tests.docker_engine import unmount_below

ENDED_WITHIN_SECONDS = 30.0


def end_leftovers(folder: Path) -> None:
    """Kill what belongs to the system in ``folder``, and unmount what is below it. Raises AssertionError when some process stays."""
    until = time.monotonic() + ENDED_WITHIN_SECONDS
    while left := processes_of(folder):
        assert time.monotonic() < until, f"left: {left}"
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    unmount_below(folder)


def processes_of(folder: Path) -> set[int]:
    """Return the living processes that belong to the system in ``folder``; the caller's own are left out."""
    text, found = str(folder).encode(), set[int]()
    own = {os.getpid(), *(each.pid for each in psutil.Process().parents())}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid in own or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if _names(process.pid, text):
                found |= {process.pid, *(each.pid for each in process.children(recursive=True))}
    return found - own


def _names(pid: int, text: bytes) -> bool:
    return any(text in Path(f"/proc/{pid}/{file}").read_bytes() for file in ("cmdline", "environ"))
