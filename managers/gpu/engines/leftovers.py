"""Leftovers: servers that outlived their node worker, found by a label and ended.

The label is a secret of one state directory, in the environment of every server that its node worker
starts; their children inherit it. So no process is ended by name or by number alone (I7).
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import psutil

VARIABLE: Final = "TANGRAM_SERVICES_OF"
_KEY: Final = "services.key"
_PATIENCE_SECONDS: Final = 10.0


def label_of(directory: Path) -> dict[str, str]:
    """Return the label of a state directory, made when there is none."""
    path = directory / _KEY
    with contextlib.suppress(FileExistsError), path.open("x") as file:
        path.chmod(0o600)
        file.write(secrets.token_hex(16))
    return {VARIABLE: path.read_text()}


def left_by(directory: Path) -> Callable[[int], bool]:
    """Return a test for processes that a node worker of ``directory`` started for a service."""
    path = directory / _KEY
    label = path.read_text() if path.exists() else None

    def ours(pid: int) -> bool:
        with contextlib.suppress(psutil.Error, OSError):
            return label is not None and psutil.Process(pid).environ().get(VARIABLE) == label
        return False

    return ours


def end_left_by(directory: Path) -> int:
    """Kill what a node worker of ``directory`` started for its services; return how many. Blocks until they have ended."""
    path = directory / _KEY
    return end_leftovers({VARIABLE: path.read_text()}) if path.exists() else 0


def end_leftovers(label: dict[str, str]) -> int:
    """Kill the processes with ``label``; return their number. Blocks until they have ended."""
    found = list(_labelled(label))
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(found, timeout=_PATIENCE_SECONDS)
    return len(found)


def _labelled(label: dict[str, str]) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(VARIABLE) == label[VARIABLE]:
                yield process
