"""Moves of environments outlive kill -9 of each part: no file is lost, no action runs twice, nothing is left behind.

The long tier has containers of a real engine, too, whose layers the engine keeps: each move stores and loads an image.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from managers.cpu.workspaces import safe_name
from tangram_client import Client
from tangram_client._calls import control_node
from tangram_client.models import ActionView
from tests.conformance.isolations import isolations
from tests.docker_engine import IMAGE, DockerEngine, missing_programs
from tests.faults.audit import Audit
from tests.faults.system import System
from tests.tiers import by_tier

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
]
ISOLATIONS = by_tier(["bwrap"], ["bwrap"], ["bwrap", "docker"])
TRAJECTORIES = by_tier(3, 6, 12)
#: So much that the kill of a part comes in the middle.
MEGABYTES = 64
WITHIN_SECONDS = 240.0


@pytest.fixture(scope="module", params=ISOLATIONS)
def isolation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def engine(isolation: str) -> Iterator[DockerEngine | None]:
    """The engine of both nodes; None: they use bubblewrap."""
    if isolation == "bwrap":
        if isolation not in isolations():
            pytest.skip("bubblewrap does not work here")
        yield None
        return
    if missing := missing_programs():
        pytest.skip(f"not installed: {', '.join(missing)}")
    engine = DockerEngine()
    try:
        engine.start()
        engine.load_image()
        yield engine
    finally:
        engine.stop()


@pytest.fixture(scope="module")
def system(
    tmp_path_factory: pytest.TempPathFactory, engine: DockerEngine | None
) -> Iterator[System]:
    own = {}
    if engine is not None:
        own = {
            "TANGRAM_CPU_BACKEND": "docker", "TANGRAM_DOCKER_HOST": engine.host, "TANGRAM_DOCKER_IMAGE": IMAGE,
            "TANGRAM_ENVIRONMENT_DISKS": "watched",
        }  # fmt: skip
    system = System(tmp_path_factory.mktemp("v"), nodes=2, environment=own)
    try:
        system.start()
        yield system
    finally:
        system.stop()


@pytest.fixture(scope="module")
def audit(system: System) -> Audit:
    return Audit(system)


def until(holds: Callable[[], bool], system: System) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + WITHIN_SECONDS
    while not holds():
        assert time.monotonic() < deadline, system.tails()
        time.sleep(0.01)


def progress(system: System, node: str) -> dict[str, Any]:
    """Return what the drain of a node has done."""
    return system._node(node)["drain"] or {"moving": 0, "moved": 0, "trajectories": -1, "stays": {}}


def drain(system: System, node: str) -> None:
    with Client(system.address.url, system.operator) as client:
        client.send(control_node(node, "drain", finishing=True))


def run(client: Client, name: str, command: str) -> ActionView:
    """Run a command in a trajectory to its end."""
    return client.run(
        {
            "task": "t", "kind": "exec", "trajectory": name, "cost": {"cpu": 0.1},
            "exec": {"command": ["sh", "-c", command]},
        }
    )  # fmt: skip


def ran(client: Client, name: str, number: int) -> str:
    """Run an action that appends its number once and checks the content of a file; return its outcome."""
    view = run(client, name, f"echo {number} >> ran && sha256sum --status -c sum /var/lib/sum")
    assert view.outcome != "completed" or view.result["exit_code"] == 0, view
    return str(view.outcome)


def folders(system: System, name: str) -> list[Path]:
    """Return the folders of a trajectory's environment on all nodes."""
    nodes = system.home.path / "nodes"
    return sorted(nodes.glob(f"*/cpu/[ew]*s/{safe_name(f'default/{name}')}"))


def images(engine: DockerEngine | None) -> list[str]:
    """Return the images that drivers have made."""
    if engine is None:
        return []
    with engine.client() as client:
        return [each["Id"] for each in client.images(filters={"label": "tangram.owner"})]


@pytest.mark.parametrize("killed", ["source", "target", "loop"])
def test_no_kill_in_the_middle_loses_a_file_or_runs_an_action_twice(
    system: System, audit: Audit, engine: DockerEngine | None, killed: str
) -> None:
    system.resume("n2")
    drain(system, "n2")  # all begin on n1
    until(lambda: system._node("n2")["drain"] is not None, system)
    names = [f"{killed}-{number}" for number in range(TRAJECTORIES)]
    outcomes: dict[tuple[str, int], str] = {}
    outside = "head -c 4M /dev/urandom > /var/lib/data && sha256sum /var/lib/data > /var/lib/sum"
    fill = f"head -c {MEGABYTES}M /dev/urandom > data && sha256sum data > sum && {outside}"
    with Client(system.address.url, system.token) as client:
        for name in names:
            assert run(client, name, fill).outcome == "completed"
        system.resume("n2")
        drain(system, "n1")
        until(lambda: progress(system, "n1")["moving"] > 0, system)
        parts = {"source": system["node"], "target": system["node-2"]}
        part = parts[killed] if killed in parts else system.leader()
        part.kill()
        part.start()
        for name in names:
            outcomes[name, 1] = ran(client, name, 1)
        until(lambda: progress(system, "n1")["trajectories"] == 0, system)
        for name in names:
            outcomes[name, 2] = ran(client, name, 2)
            said = run(client, name, "cat ran").result["stdout"].split()
            completed = [str(n) for n in (1, 2) if outcomes[name, n] == "completed"]
            assert [each for each in said if each in completed] == completed
            assert len(said) == len(set(said)), f"{name} ran twice: {said}"
        assert {outcomes[name, 2] for name in names} == {"completed"}
        audit.replay()
        until(lambda: all(len(folders(system, name)) == 1 for name in names), system)
        for name in names:
            client.finish_trajectory(name)
        until(lambda: not any(folders(system, name) for name in names), system)
        until(lambda: not images(engine), system)
    system.resume("n1")
    for held in (system.home.path / "nodes").glob("*/moves/*"):
        raise AssertionError(f"{held} is held for no move")
