"""`client.fleets`, and `tangram fleet`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tangram_client import Client
from tangram_client.aio import AsyncClient
from tangram_client.testing import FakeServer
from tests.unit.client.cli_runner import tangram
from tests.unit.client.test_rollouts import answers

WORKER = {
    "name": "w1", "url": None, "degree": 4, "slots": 8, "running": 3, "waiting": 1, "trajectories": 5,
    "context_tokens": 900, "drained": True, "unhealthy": "", "weights_version": 2,
    "priorities": "lower_first", "moves": "",
}  # fmt: skip
TRAJECTORY = {
    "trajectory": "t-1", "project": "default", "state": "runs", "worker": "w1", "steps": 2,
    "sampled_tokens": 50, "predicted_tokens": 200.4, "context_tokens": 90, "pinned": True,
}  # fmt: skip
STATUS = {
    "name": "m", "engine": "vllm", "policy": "hedged", "transfer": "", "workers": [WORKER],
    "unrouted": {"no_worker": 2}, "live": 1, "trajectories": [TRAJECTORY], "moves": [], "refused": {},
    "correlation": 1.0, "finished": [], "generation_seconds": 0.0,
}  # fmt: skip
PLAN: dict[str, Any] = {
    "fleet": "m", "code": "arranged", "reason": "The policy arranges.", "trajectories": 9, "changes": 1, "predicted": 8,
    "kept_seconds": 50.0, "planned_seconds": 40.0, "gain_seconds": 10.0,
    "placements": [{"trajectory": "t-1", "project": "default", "worker": None, "planned": "w2",
                    "context_tokens": 90, "tokens_left": None}],
}  # fmt: skip
CHANGED = {"fleet": "m"}


def test_a_worker_is_drained_and_a_trajectory_is_pinned(server: FakeServer) -> None:
    answers(server, *[CHANGED] * 4)
    with Client("http://fake", "t", project="p", transport=server.transport) as client:
        client.fleets.drain("m", "w 1")
        client.fleets.undrain("m", "w1")
        client.fleets.pin("m", "t-1", "w1")
        client.fleets.unpin("m", "t-1")

    assert [(each.path, dict(each.params)) for each in server.sent] == [
        ("/api/v1/fleets/m/workers/w 1/drain", {}), ("/api/v1/fleets/m/workers/w1/undrain", {}),
        ("/api/v1/fleets/m/pin", {"project": "p"}), ("/api/v1/fleets/m/pin", {"project": "p"}),
    ]  # fmt: skip
    assert [json.loads(each.body)["worker"] for each in server.sent[2:]] == ["w1", ""]


def test_a_pin_names_a_worker(client: Client) -> None:
    with pytest.raises(ValueError, match="unpin"):
        client.fleets.pin("m", "t-1", "")


async def test_status_and_plan_are_read(server: FakeServer) -> None:
    answers(server, STATUS, PLAN)
    async with AsyncClient("http://fake", "t", transport=server.transport) as client:
        status = await client.fleets.status("m", limit=3)
        plan = await client.fleets.plan("m", limit=7)

    assert (status.workers[0]["slots"], status.unrouted, status.live) == (8, {"no_worker": 2}, 1)
    assert (plan.changes, plan.gain_seconds, plan.placements[0]["planned"]) == (1, 10.0, "w2")
    assert json.loads(server.sent[-1].body) == {"limit": 7}


def test_the_command_line_shows_workers_and_lengths(server: FakeServer) -> None:
    answers(server, STATUS, STATUS)
    shown = tangram(server, "fleet", "status", "m")
    worker, trajectory = (shown.stdout.splitlines()[at].split() for at in (1, 4))

    assert worker == ["w1", "drained", "4", "3", "of", "8", "1", "5", "2", "lower_first", "–"]
    assert trajectory == ["default/t-1", "runs,", "pinned", "w1", "2", "50", "200"]
    assert "2 generations wait without a worker (no_worker)" in shown.stderr
    assert json.loads(tangram(server, "fleet", "status", "m", "-o", "json").stdout) == STATUS


def test_the_command_line_shows_workers_on_gpus_that_do_not_serve_yet(server: FakeServer) -> None:
    own = {
        "name": "own-2x-1", "degree": 2, "state": "waits", "detail": "no chunk is free", "node": "",
        "gpus": [], "action": "act_1",
    }  # fmt: skip
    answers(server, {**STATUS, "own": [own], "trajectories": []})

    shown = tangram(server, "fleet", "status", "m").stdout.splitlines()[-1]
    assert shown.split() == "own-2x-1 waits – 2 wanted act_1 no chunk is free".split()


def test_the_command_line_says_what_would_move_and_that_nothing_did(server: FakeServer) -> None:
    kept = {**PLAN, "code": "kept", "gain_seconds": None, "placements": []}
    answers(server, PLAN, kept)
    shown = tangram(server, "fleet", "plan", "m")

    assert shown.stdout.splitlines()[1].split() == ["default/t-1", "–", "w2", "90", "–"]
    assert "1 of 9 trajectories would move" in shown.stderr
    assert "10.0 s sooner. Nothing was changed." in shown.stderr
    assert "Nothing would move." in tangram(server, "fleet", "plan", "m").stderr


def test_verbs_of_the_command_line_are_those_of_the_client(server: FakeServer) -> None:
    answers(server, *[CHANGED] * 4)
    for words in (
        ("drain", "m", "w1"),
        ("undrain", "m", "w1"),
        ("pin", "m", "t-1", "w1"),
        ("unpin", "m", "t-1"),
    ):
        assert tangram(server, "fleet", *words).exit_code == 0

    assert [each.path.rpartition("/")[2] for each in server.sent] == [
        "drain",
        "undrain",
        "pin",
        "pin",
    ]
