"""Tiny real programs, and ways to wait for what they do."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tangram_web.supervisor.children import Program
from tangram_web.supervisor.data_folder import DataFolder

#: Says that it runs, and then waits for a signal.
WAITS = "import signal, sys; sys.stdout.write('up\\n'); sys.stdout.flush(); signal.pause()"
#: The same, deaf to SIGTERM.
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{WAITS}"


def a_program(source: str, *, name: str = "child", grace_seconds: float = 120.0) -> Program:
    """Return a program that runs ``source``, in a Python that starts at once."""
    return Program(name, (sys.executable, "-ISc", source), grace_seconds=grace_seconds)


async def line_in(log: Path, wanted: str) -> None:
    """Return once the log has the line."""
    async with asyncio.timeout(120):
        while not (log.exists() and wanted in log.read_text().splitlines()):
            await asyncio.sleep(0)


@pytest.fixture
def home(tmp_path: Path) -> DataFolder:
    """Return an empty data folder."""
    return DataFolder.open(tmp_path / "home")


@pytest.fixture
def announced() -> list[str]:
    """Collect what is announced."""
    return []


@pytest.fixture
def announce(announced: list[str]) -> Callable[[str], None]:
    """Return something to announce with."""
    return announced.append
