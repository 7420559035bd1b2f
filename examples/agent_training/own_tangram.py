"""The Tangram that a run uses: the one that answers, else one of its own, below the folder of the run.

Lifetimes: one of its own is started in a session of its own, goes on when the trainer is killed, and is used by the next one. It ends with the
trainer that ends by itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from examples.agent_training.rank_group import ROOT
from tangram_client import Client
from tangram_client.errors import TangramClientError
from tangram_client.retry import RetryPolicy

_START_SECONDS: Final = 240.0
_END_SECONDS: Final = 120.0


class NoTangram(Exception):
    """No Tangram answers, and none can be started."""


@contextlib.contextmanager
def tangram_of(run: Path) -> Iterator[str]:
    """Yield the URL of a Tangram that answers, and have the environment name it. Raises NoTangram."""
    if (url := _answering()) is not None:
        yield url
        return
    home = run / "tangram"
    os.environ["TANGRAM_HOME"] = str(home)
    url = _answering() or _start(home)
    yield url
    _end(home)


def _answering() -> str | None:
    """Return the URL of the Tangram that clients find, if it answers."""
    try:
        with Client(retry=RetryPolicy(attempts=1)) as client:
            client.status()
            return str(client.url)
    except (TangramClientError, ValueError):
        return None


def _start(home: Path) -> str:
    home.mkdir(parents=True, exist_ok=True)
    log = (home.parent / "logs").joinpath("tangram.log")
    log.parent.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tangram_web.supervisor", "--no-demo", "--home", str(home)]
    with log.open("ab") as said:
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
        )  # fmt: skip
    (home / "example.pid").write_text(str(process.pid))
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            raise NoTangram(f"./tangram up ended with {process.returncode}: see {log}")
        if (home / "client.json").exists() and (url := _answering()) is not None:
            return url
        time.sleep(0.2)
    raise NoTangram(f"./tangram up was not ready within {_START_SECONDS:g} s: see {log}")


def _end(home: Path) -> None:
    with contextlib.suppress(OSError, ValueError, json.JSONDecodeError):
        pid = int((home / "example.pid").read_text())
        handle = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(handle, signal.SIGINT)
            _wait(handle)
        finally:
            os.close(handle)
        (home / "example.pid").unlink()


def _wait(handle: int) -> None:
    """Wait until a process has ended, whether it is a child or not."""
    select.select([handle], [], [], _END_SECONDS)
