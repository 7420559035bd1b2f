"""`tangram node drain --wait` says what a drain waits for, until the node has no trajectory."""

from __future__ import annotations

from typing import Any

import pytest

from tangram_client.cli import operate
from tangram_client.testing import FakeServer
from tests.unit.client.cli_runner import tangram
from tests.unit.client.test_rollouts import answers


def status(trajectories: int | None, text: str = "") -> dict[str, Any]:
    drain = None if trajectories is None else {"trajectories": trajectories, "text": text}
    return {"nodes": [{"name": "n1", "pool": "default", "state": "drained", "drain": drain}]}


def test_a_drain_that_is_waited_for_says_each_change_once(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operate, "DRAIN_LOOK_SECONDS", 0.0)
    some, all_moved = "1 of 2 trajectories was moved, 1 holds a process", "2 of 2 were moved"
    drained = {"node": "n1", "drained": True, "finishing": True, "reason": ""}
    answers(server, drained, status(None), status(1, some), status(1, some), status(0, all_moved))

    said = tangram(server, "node", "drain", "n1", "--finish-trajectories", "--wait")

    assert said.exit_code == 0, said.stderr
    assert said.stderr.splitlines() == [some, all_moved, "node n1 has no trajectory"]


def test_a_drain_that_stops_trajectories_is_not_waited_for(server: FakeServer) -> None:
    said = tangram(server, "node", "drain", "n1", "--wait")

    assert said.exit_code != 0
    assert "--finish-trajectories" in said.stderr
    assert server.sent == []
