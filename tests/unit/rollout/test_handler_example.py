"""The example of a handler does what its guide says, and is found as an installed package would be."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from rollout.handlers.base import AgentHandler
from rollout.handlers.registry import BUILT_IN, GROUP, load
from rollout.testing.fake_port import FakePort
from rollout.testing.local_handlers import local_pool, running
from rollout.worker.worker import RolloutWorker
from tests.architecture.tree import ROOT
from tests.unit.rollout.builders import ENVIRONMENT, a_rollout

EXAMPLE: Path = ROOT / "examples" / "rollout_handler"


@pytest.mark.parametrize(("said", "reward"), [("5\n", 1.0), ("6\n", 0.0), ("", 0.0)])
async def test_the_example_scores_what_its_program_said(monkeypatch, said, reward):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    places = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]
    ran: list[list[str]] = []

    async def program(members: Any) -> Any:
        ran.append(members["exec"]["command"])
        return "completed", {"exit_code": 0, "stdout": said}

    port = FakePort(program)
    worker = RolloutWorker(port, places[GROUP], slots=8, pool=local_pool())
    async with running(worker):
        rollout = a_rollout(handler="sums")
        port.submit_rollout(rollout, instance={"a": 2, "b": 3}, environment=ENVIRONMENT)
        result = await port.result(rollout.id)

    assert result.reward == reward
    assert ran == [["sh", "add.sh", "2", "3"]]
    sys.modules.pop("sums", None)


def test_the_handlers_of_tangram_are_entry_points_and_known_without_an_installation() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert project["entry-points"][GROUP] == dict(BUILT_IN)
    for place in BUILT_IN.values():
        assert isinstance(load(place), AgentHandler)
