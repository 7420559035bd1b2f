"""The demo of rollouts, on a running Tangram: real bugs, real tokens, real sandboxes, and rewards that fit the agents."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tangram_client import Client
from tests.acceptance.up.conftest import Tangram
from tests.architecture.tree import ROOT
from tests.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def demo(home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the demo as its help says."""
    return subprocess.run(
        [sys.executable, "examples/rollouts/demo.py", *options], cwd=ROOT, text=True, timeout=800,
        capture_output=True, check=False,
        env={"TANGRAM_HOME": str(home), "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip


def test_agents_get_the_rewards_that_they_deserve_and_nothing_is_left(tangram: Tangram) -> None:
    ran = demo(tangram.home, "--bugs", "3", "--bring-pytest", "--patience", "700")

    assert ran.returncode == 0, ran.stdout + ran.stderr
    said = ran.stdout.splitlines()
    assert said[-1] == "Every reward is the one that its agent deserves."
    table = [line.split() for line in said[said.index("") + 2 : -1]]
    assert [row[0] for row in table] == [
        f"{name}-0" for name in ("inflection", "mdurl", "uritemplate") for _ in range(4)
    ]
    assert sum(" fixes it " in line and " 1 " in line for line in said) == 3
    with Client(tangram.access["url"], tangram.access["token"]) as client:
        assert not [each for each in client.backends.list() if each["backends"]]
        assert client.snapshots.list() == []
        assert with_tokens(client) == []

        kept = demo(tangram.home, "--bugs", "1", "--samples", "1", "--bring-pytest", "--keep")

        assert kept.returncode == 0, kept.stdout + kept.stderr
        bug, _, _ = kept.stdout.partition(":")
        assert with_tokens(client) == [bug]
        assert not [each for each in client.backends.list() if each["backends"]]


def with_tokens(client: Client) -> list[str]:
    """Return the instances of the finished rollouts whose tokens are stored."""
    ends = client.rollouts.completions("", limit=256).items
    return [each.instance for each in ends if each.segments]


def test_without_a_tangram_the_demo_says_how_to_start_one(tmp_path: Path) -> None:
    (tmp_path / "client.json").write_text(
        f'{{"url": "http://127.0.0.1:{free_port()}", "token": "t"}}'
    )

    ran = demo(tmp_path)

    assert ran.returncode == 1
    assert "Start one: ./tangram up" in ran.stderr
    assert "Traceback" not in ran.stderr
