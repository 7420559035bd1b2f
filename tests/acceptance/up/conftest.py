"""A whole Tangram, started as its users start it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPCookieProcessor, Request, build_opener, urlopen
from uuid import uuid4

import pytest

from tests.architecture.tree import ROOT

_READY = "Ctrl-C ends everything."


class Tangram:
    """One running `tangram up`."""

    def __init__(self, home: Path, *options: str, within: Sequence[str] = ()) -> None:
        self.home = home
        program = [sys.executable, "-m", "tangram_web.supervisor", "--home", str(home)]
        command = [*within, *program, *options]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.said: list[str] = []

    def wait_until_ready(self) -> None:
        """Read its output until it is ready."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line)
            if _READY in line:
                return
        raise AssertionError(f"it did not start:\n{''.join(self.said)}")

    @property
    def access(self) -> dict[str, str]:
        """Return where clients find it, and with which token."""
        read: dict[str, str] = json.loads((self.home / "client.json").read_text())
        return read

    def post(self, path: str, body: object) -> Any:
        """Send a request with the local token and return the body of the response."""
        headers = {
            "Authorization": f"Bearer {self.access['token']}",
            "Content-Type": "application/json",
            "Idempotency-Key": uuid4().hex,
        }
        return self._ask(Request(self.access["url"] + path, json.dumps(body).encode(), headers))

    def request(self, method: str, path: str, body: object) -> Any:
        """Send another method than GET and POST, with the local token."""
        headers = {
            "Authorization": f"Bearer {self.access['token']}",
            "Content-Type": "application/json",
        }
        url = self.access["url"] + path
        return self._ask(Request(url, json.dumps(body).encode(), headers, method=method))

    def hold(self, lease: object) -> Any:
        """Submit a lease and return it once it is granted; ``wait`` would wait until it ends."""
        action = self.post("/api/v1/actions", lease)
        while action["state"] == "queued":
            action = self.get(f"/api/v1/actions/{action['id']}")
        return action

    def get(self, path: str) -> Any:
        """Read with the local token."""
        headers = {"Authorization": f"Bearer {self.access['token']}"}
        return self._ask(Request(self.access["url"] + path, headers=headers))

    def ended_trajectory(self, name: str) -> Any:
        """Return a trajectory once its row says that it has ended: rows follow the journal."""
        until = time.monotonic() + 60
        while (shown := self.get(f"/api/v1/trajectories/{name}"))["state"] == "open":
            assert time.monotonic() < until, shown
        return shown

    def _ask(self, request: Request) -> Any:
        """Send a request until it is answered: 503 asks for a retry, as when the scheduler is delayed."""
        until = time.monotonic() + 120
        while True:
            try:
                with urlopen(request, timeout=180) as answer:
                    return json.load(answer)
            except HTTPError as refused:
                if refused.code != 503 or time.monotonic() > until:
                    raise
                with refused:
                    time.sleep(float(refused.headers.get("Retry-After", 1)))

    def descendants(self) -> set[int]:
        """Return all processes that name this data folder in their environment or command."""
        return {pid for pid in _pids() if pid != self.process.pid and _names(pid, str(self.home))}

    def wait_until_alone(self) -> None:
        """Return once none of its processes exists."""
        deadline = time.monotonic() + 120
        while left := self.descendants():
            assert time.monotonic() < deadline, f"left behind: {left}"

    def end(self) -> int:
        """Press Ctrl-C, and return the exit code."""
        self.process.send_signal(signal.SIGINT)
        rest, _ = self.process.communicate(timeout=180)
        self.said.append(rest)
        return self.process.returncode


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _names(pid: int, folder: str) -> bool:
    # Both: Redis writes over its environment, Celery's command does not say where its data are.
    try:
        texts = [Path(f"/proc/{pid}/{file}").read_bytes() for file in ("environ", "cmdline")]
    except OSError:
        return False
    return any(folder.encode() in text for text in texts)


def page(tangram: Tangram, path: str) -> str:
    """Return a page, read after the login link of the welcome text, which works once."""
    browser = build_opener(HTTPCookieProcessor(CookieJar()))
    link = next(word for line in tangram.said for word in line.split() if "/enter/" in word)
    browser.open(link, timeout=60).read()
    with browser.open(tangram.access["url"] + path, timeout=60) as answer:
        read: bytes = answer.read()
    return read.decode()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Tangram]]:
    """Start Tangrams, ``within`` a command if given; those that still run at the end are killed."""
    started: list[Tangram] = []

    def begin(*options: str, home: Path = tmp_path / "home", within: Sequence[str] = ()) -> Tangram:
        tangram = Tangram(home, *options, within=within)
        started.append(tangram)
        return tangram

    yield begin
    for tangram in started:
        tangram.process.kill()
        tangram.process.communicate()
        tangram.wait_until_alone()
