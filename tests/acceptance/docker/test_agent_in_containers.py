"""The agent of the examples works in containers as it does under bubblewrap, and leaves no image of its forks."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests.acceptance.up.conftest import Tangram
from tests.architecture.tree import ROOT
from tests.docker_engine import DockerEngine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_an_agent_works_in_a_container_and_its_forks_are_rewarded(
    tangram: Tangram, engine: DockerEngine
) -> None:
    agent = subprocess.run(
        [sys.executable, "examples/agent_shell.py"], cwd=ROOT, text=True, timeout=400, check=True,
        stdout=subprocess.PIPE,
        env={"TANGRAM_HOME": str(tangram.home), "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert agent.stdout.splitlines() == [
        "the server says: Tangram",
        "the shell asks: Stop it? [y/n]",
        "rewards of the forks: [0.0, 1.0, 0.0, 1.0]",
    ]
    deadline = time.monotonic() + 120
    with engine.client() as client:
        while client.images(filters={"label": "tangram.owner"}):
            assert time.monotonic() < deadline, "images of forks are left"
            time.sleep(0.1)
