"""The present version starts on the data of an earlier one, which was killed at work."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections import Counter
from pathlib import Path

import pytest

from tangram_web.supervisor.redis_server import wheel_binary
from tests.architecture.tree import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HOMES = sorted((ROOT / "tests" / "data").glob("*/home.tar.xz"))


@pytest.fixture(params=HOMES, ids=lambda path: path.parent.name)
def home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    # The node workers of the archive are named after the machine that they ran on.
    monkeypatch.setenv("TANGRAM_NODE", "vm")
    monkeypatch.setenv("TANGRAM_NODE_GPUS", "2")
    # The rows are older with every day.
    monkeypatch.setenv("TANGRAM_RETENTION_DAYS", "0")
    return tmp_path / "oldhome"


@pytest.fixture(
    params=["valkey of the wheel", pytest.param("redis of the system", marks=pytest.mark.long)]
)
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The server that reads the data, which Redis 7.0 wrote; it has no password there."""
    program = wheel_binary() if "valkey" in request.param else shutil.which("redis-server")
    monkeypatch.setenv("TANGRAM_REDIS_SERVER", str(program))
    return str(program)


def actions_of(tangram, task: str) -> list[dict]:
    return tangram.get(f"/api/v1/actions?task={task}&limit=100")["results"]


def test_an_upgrade_keeps_rows_tokens_configuration_and_queued_actions(start, home, server):
    """1. Start on the old data. 2. Queued and running actions end once. 3. New ones run."""
    tangram = start("--no-demo", "--nodes", "2", "--cpus", "2", home=home)
    token = token_of(home)
    tangram.wait_until_ready()
    assert tangram.access["token"] == token
    assert f"({server})" in "".join(tangram.said)

    # Their trajectories had a ttl of two hours, which is over since.
    waited = [
        tangram.get(f"/api/v1/actions/{each['id']}?wait=120")
        for each in actions_of(tangram, "waiting")
    ]
    assert [each["outcome"] for each in waited] == ["cancelled"] * 4
    assert {each["detail"] for each in waited} == {"trajectory: its time to live is over"}

    interrupted = [
        tangram.get(f"/api/v1/actions/{each['id']}?wait=120")
        for each in actions_of(tangram, "busy")
    ]
    assert Counter(each["outcome"] for each in interrupted) <= Counter(infra_failed=2, unknown=2)

    paused = actions_of(tangram, "paused")
    assert [each["state"] for each in paused] == ["queued"]
    tangram.post("/api/v1/tasks/paused/resume", {})
    assert tangram.get(f"/api/v1/actions/{paused[0]['id']}?wait=120")["outcome"] == "completed"

    ended = Counter(
        each["outcome"] for each in actions_of(tangram, "gpu") + actions_of(tangram, "slow")
    )
    assert ended == {"completed": 12, "timeout": 1}
    called = tangram.post(
        "/api/v1/actions?wait=120",
        {
            "task": "gpu",
            "kind": "call",
            "call": {"target": "service:files-a", "method": "GET", "path": "/"},
        },
    )
    assert called["outcome"] == "completed"
    assert tangram.end() == 0


def token_of(home: Path) -> str:
    token: str = json.loads((home / "client.json").read_text())["token"]
    return token
