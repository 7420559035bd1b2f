"""A whole Tangram of our own, started as a user starts it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.docker_engine import unmount_below

ROOT = Path(__file__).resolve().parent.parent
READY_SECONDS = 180.0


@dataclass(frozen=True)
class Stack:
    """A running Tangram."""

    home: Path
    host: str
    port: int
    token: str
    process: subprocess.Popen[bytes]


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def tangram(
    *options: str, environment: Mapping[str, str] | None = None, root: Path = ROOT
) -> Iterator[Stack]:
    """Start what ``./tangram up`` starts, on a fresh home, without demo load; end it afterwards.

    ``root``: the checkout that is started, with this interpreter and its packages.
    """
    with (
        tempfile.TemporaryDirectory(prefix="tangram-bench-") as directory,
        tangram_at(Path(directory), *options, environment=environment, root=root) as stack,
    ):
        yield stack


@contextmanager
def tangram_at(
    directory: Path,
    *options: str,
    environment: Mapping[str, str] | None = None,
    root: Path = ROOT,
) -> Iterator[Stack]:
    """Do what `tangram` does in a folder that stays, so that a second start finds the data of the first."""
    home, port = directory / "home", free_port()
    log = (directory / "up.log").open("wb")
    command = [sys.executable, "-m", "tangram_web.supervisor", "--no-demo", "--home", str(home)]
    process = subprocess.Popen(
        [*command, "--port", str(port), *options],
        stdout=log, stderr=log, cwd=root, env={**os.environ, **(environment or {})},
    )  # fmt: skip
    try:
        _wait_ready(port, process, directory / "up.log")
        token = json.loads((home / "client.json").read_text())["token"]
        yield Stack(home, "127.0.0.1", port, token, process)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
        log.close()
        unmount_below(directory)


def token(stack: Stack, *scopes: str) -> str:
    """Make a token with more scopes than the one that `up` leaves."""
    wanted = [word for scope in scopes for word in ("--scope", scope)]
    made = subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), "token", "--name", "bench", *wanted],
        env={**os.environ, "TANGRAM_HOME": str(stack.home)},
        capture_output=True,
        text=True,
        check=True,
    )
    return made.stdout.strip()


def _wait_ready(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"tangram up ended with {process.returncode}:\n{log.read_text()}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.05)
    raise SystemExit(f"tangram up was not ready within {READY_SECONDS:g} s:\n{log.read_text()}")
