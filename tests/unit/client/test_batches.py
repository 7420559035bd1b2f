"""`client.batches`, and `tangram batch`."""

from __future__ import annotations

import json
from typing import Any

from tangram_client import Client
from tangram_client.aio import AsyncClient
from tangram_client.testing import FakeServer
from tests.unit.client.cli_runner import tangram
from tests.unit.client.test_rollouts import answers

MANIFEST: dict[str, Any] = {
    "id": "bat_1", "project": "default", "created_at": "2026-01-01T00:00:00Z",
    "expires_at": "2026-01-01T01:00:00Z", "ranks": 1, "tokens": 30, "bytes": 200,
    "weights_versions": [1, 2],
    "rows": [{"row": 0, "rollout": "rol_1", "segment": 0, "prompt_tokens": 10, "response_tokens": 20,
              "sampled_tokens": 20, "reward": 0.5, "weights_versions": [1, 2], "bytes": 200, "worker": "w1"}],
    "owners": [{"rank": 0, "rows": [0], "tokens": 30, "bytes": 200, "token": "tgb_x"}],
    "workers": [], "rows_path": "/api/v1/batches/bat_1/rows",
    "left_out": [{"rollout": "rol_2", "code": "rollout_without_reward", "detail": "rol_2 completed without a reward"}],
}  # fmt: skip
SUMMARY = {
    "id": "bat_1", "expired": True, "ranks": 4, "rollouts": 2, "rows": 2, "tokens": 9, "bytes": 2**20,
    "expires_at": "2026-01-01T01:00:00Z", "pulls": [{"worker": "w1", "rank": 0, "bytes": 2**19}],
}  # fmt: skip


def test_a_manifest_has_the_address_of_the_gateway(server: FakeServer) -> None:
    answers(server, MANIFEST, MANIFEST)
    with Client("http://fake", "t", project="p", transport=server.transport) as client:
        made = client.batches.create(
            rollouts=["rol_1"], layout={"ranks": 1}, idempotency_key="step-1"
        )
        shown = client.batches.get("bat_1", rank=0)

    assert made == shown == {**MANIFEST, "gateway": "http://fake"}
    create, get = server.sent
    assert create.headers["idempotency-key"] == "step-1"
    assert json.loads(create.body) == {
        "layout": {"ranks": 1}, "rollouts": ["rol_1"], "project": "p",
    }  # fmt: skip
    assert (get.path, dict(get.params)) == ("/api/v1/batches/bat_1", {"rank": "0", "project": "p"})


async def test_groups_are_named_by_one_name_or_several(server: FakeServer) -> None:
    answers(server, MANIFEST, MANIFEST, {"items": [SUMMARY]})
    async with AsyncClient("http://fake", "t", transport=server.transport) as client:
        await client.batches.create(group="g", layout={"ranks": 1})
        await client.batches.create(group=("g", "h"), layout={"ranks": 1}, leave_out=True)
        assert await client.batches.list(limit=1) == [SUMMARY]

    bodies = [json.loads(each.body) for each in server.sent[:2]]
    assert [body["group"] for body in bodies] == ["g", ["g", "h"]]
    assert [body.get("leave_out") for body in bodies] == [None, True]


def test_the_command_makes_shows_and_lists(server: FakeServer) -> None:
    answers(server, MANIFEST, MANIFEST, {"items": [SUMMARY]})
    made = tangram(server, "batch", "create", "rol_1", "rol_2", "--ranks", "1", "--leave-out")
    assert made.exit_code == 0
    assert made.stdout.splitlines()[-1].split() == [
        "0", "rol_1", "0", "10", "20", "0.5", "1–2", "0", "w1",
    ]  # fmt: skip
    assert "left out: rol_2 completed without a reward" in made.stderr
    shown = json.loads(tangram(server, "batch", "show", "bat_1", "-o", "json").stdout)
    assert shown["owners"][0]["token"] == "tgb_x"
    listed = tangram(server, "batch", "list").stdout.splitlines()[-1].split()
    assert listed[:2] + listed[6:8] == ["bat_1", "expired", "1.0", "0.5"]


def test_the_command_wants_rollouts_or_groups_and_ranks_or_a_layout(server: FakeServer) -> None:
    for words in (["--ranks", "1"], ["rol_1"], ["rol_1", "--layout", "[]"]):
        assert tangram(server, "batch", "create", *words).exit_code == 2
