"""Efficient DAPO on a whole Tangram whose web process is killed meanwhile: every prompt once."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from tangram_client import Client
from tangram_client.dapo import Dapo
from tests.acceptance.up.conftest import Tangram

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def web_process(tangram: Tangram) -> int:
    """Return the process that serves HTTP."""
    port = tangram.access["url"].rpartition(":")[2].rstrip("/")
    (found,) = [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if "uvicorn" in (words := process.info["cmdline"] or []) and port in words
    ]
    return found


def test_each_informative_prompt_is_returned_once_though_the_web_process_is_killed(
    tangram: Tangram,
) -> None:
    instances = [
        {"id": f"p{n}", "data": {"seconds": [0.2, 1.0], "reward": [float(n % 2), 1.0], "turns": 2}}
        for n in range(12)
    ]
    found: list[str] = []
    with Client(tangram.access["url"], tangram.access["token"]) as client:
        run = Dapo(client, "dapo", "noop", instances, prompts=2, samples=2, epochs=1, at_once=8)
        for batch in run:
            found += [group.instance["id"] for group in batch]
            assert all(len(info.segments or ()) == 1 for group in batch for info in group.rewarded)
            run.acknowledge(batch)
            if run.iteration == 1:
                os.kill(web_process(tangram), signal.SIGKILL)
    assert sorted(found) == sorted(f"p{n}" for n in range(0, 12, 2))
    assert (run.counts.informative, run.counts.wasted, run.counts.dropped) == (6, 6, 0)
    assert run.counts.carried > 0
