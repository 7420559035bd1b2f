"""A whole Tangram runs a replay in real containers, and leaves none."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter

import pytest

from managers.cpu.containers.container_config import TRAJECTORY
from tests.acceptance.up.conftest import Tangram
from tests.architecture.tree import ROOT
from tests.docker_engine import DockerEngine

pytestmark = pytest.mark.slow

TRAJECTORIES = 4
REMOVED_WITHIN_SECONDS = 180.0


def made(engine: DockerEngine) -> Counter[str]:
    """Count the containers that were made for each trajectory, as the engine has noted them.

    The name is empty for those without a trajectory: a node tries one when it starts.
    """
    with engine.client() as client:
        events = client.events(
            since=0, until=int(time.time()) + 1, decode=True,
            filters={"type": "container", "event": "create"},
        )  # fmt: skip
        return Counter(event["Actor"]["Attributes"][TRAJECTORY] for event in events)


@pytest.mark.timeout(600)
def test_a_replay_runs_in_containers_that_are_gone_when_it_is_over(
    tangram: Tangram, engine: DockerEngine
) -> None:
    [node] = tangram.get("/api/v1/nodes")["results"]
    assert node["isolation"] == "docker-direct"
    command = [sys.executable, "-m", "tangram_client", "-o", "json"]
    command += ["--url", tangram.access["url"], "--token", tangram.access["token"]]
    replay = subprocess.Popen(
        [*command, "replay", "--generate", "--trajectories", str(TRAJECTORIES), "--speed", "40"],
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    said, _ = replay.communicate()
    report = json.loads(said)
    containers = made(engine)
    assert containers.pop("") == 1
    assert list(containers.values()) == [1] * TRAJECTORIES, containers
    assert report["outcomes"] == {"completed": report["actions"]}
    until = time.monotonic() + REMOVED_WITHIN_SECONDS
    while left := engine.containers():
        assert time.monotonic() < until, left
        time.sleep(0.1)
