"""Several web processes share the port, and any of them answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from http.client import HTTPConnection
from typing import Any

import psutil
import pytest

from tests.acceptance.up.conftest import Tangram

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

#: Enough for the kernel to choose each process: the odds that it never does are 2 in 2 ** 32.
CONNECTIONS = 32
NOOP = {"task": "t", "kind": "noop"}


def web_processes(tangram: Tangram) -> list[psutil.Process]:
    """Return those that run."""
    return [
        child
        for child in psutil.Process(tangram.process.pid).children()
        if child.status() != psutil.STATUS_ZOMBIE and "tangram_web.serving" in child.cmdline()
    ]


def served(tangram: Tangram, path: str, then: Callable[[], Any] = lambda: None) -> Any:
    """Read ``path`` over many connections at once; all answer. ``then`` is called while they are open."""
    port = int(tangram.access["url"].rpartition(":")[2])
    with ExitStack() as opened:
        for _ in range(CONNECTIONS):
            connection = HTTPConnection("127.0.0.1", port, timeout=60)
            opened.callback(connection.close)
            headers = {"Authorization": f"Bearer {tangram.access['token']}"}
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            answer.read()
        return then()


def connections_of(processes: Sequence[psutil.Process]) -> list[int]:
    """Return how many connections of clients each has."""
    return [
        sum(each.status == "ESTABLISHED" for each in one.net_connections("tcp"))
        for one in processes
    ]


def wait_until_both_serve(tangram: Tangram) -> list[psutil.Process]:
    """Return the two web processes once the kernel gives connections to both."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        processes = web_processes(tangram)
        if len(processes) == 2 and all(
            served(tangram, "/livez", partial(connections_of, processes))
        ):
            return processes
    raise AssertionError(f"two web processes do not serve: {web_processes(tangram)}")


def test_two_web_processes_answer_and_one_that_is_killed_is_back(start):
    """1. Both serve. 2. An action of one is known to both. 3. One is killed: the other answers. 4. Both serve again."""
    tangram = start("--no-demo", "--webs", "2")
    tangram.wait_until_ready()
    first, _ = wait_until_both_serve(tangram)

    done = tangram.post("/api/v1/actions?wait=60", NOOP)
    served(tangram, f"/api/v1/actions/{done['id']}?wait=30")

    first.kill()
    first.wait(60)
    for _ in range(CONNECTIONS):
        assert tangram.post("/api/v1/actions?wait=60", NOOP)["outcome"] == "completed"

    assert first not in wait_until_both_serve(tangram)
    assert tangram.end() == 0
