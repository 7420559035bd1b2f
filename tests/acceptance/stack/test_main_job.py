"""The main job: recorded trajectories are played as real processes through the real path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import pytest

from tangram_client.traces.generator import generate
from tests.architecture.tree import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def cli(tangram, *arguments: str) -> subprocess.CompletedProcess[str]:
    access = tangram.access
    environment = {**os.environ, "TANGRAM_URL": access["url"], "TANGRAM_TOKEN": access["token"]}
    command = [sys.executable, "-m", "tangram_client", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=480
    )


def finished_rows(tangram, count: int) -> list[dict[str, Any]]:
    """Return the rows of the replay once ``count`` are finished: rows follow the journal."""
    until = time.monotonic() + 180
    while time.monotonic() < until:
        rows, following = [], "/api/v1/actions?task=replayed&limit=500"
        while following:
            page = tangram.get(following)
            rows += page["results"]
            following = (page["next"] or "").removeprefix(tangram.access["url"])
        if sum(row["outcome"] is not None for row in rows) >= count:
            return rows
        time.sleep(0.1)
    raise AssertionError(f"of {count} actions {len(rows)} have rows")


def test_trace_is_replayed_and_every_action_has_its_row(tangram, tmp_path):
    trace = tmp_path / "trace.jsonl"
    played = list(generate(4, seed=7))
    trace.write_text("\n".join(json.dumps(trajectory) for trajectory in played))

    done = cli(tangram, "-o", "json", "replay", str(trace), "--trajectories", "4", "--speed",
               "200", "--task", "replayed")  # fmt: skip

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    actions = sum(len(trajectory["steps"]) for trajectory in played)
    assert report["actions"] == actions
    assert report["outcomes"] == {"completed": actions}
    rows = finished_rows(tangram, actions)
    assert len(rows) == actions
    assert {row["outcome"] for row in rows} == {"completed"}


def test_completions_log_has_each_finished_action_once(tangram):
    start = tangram.get("/api/v1/completions?after=now")["next"]
    batch = {"actions": [{"task": "logged", "kind": "noop"}] * 250}
    accepted = tangram.post("/api/v1/actions/batch", batch)
    wanted = {item["id"] for item in accepted["items"]}
    seen: list[str] = []
    while len(seen) < len(wanted):
        page = tangram.get(f"/api/v1/completions?after={start}&limit=100&wait=60")
        assert page["items"], "nothing came within the wait"
        seen += [item["id"] for item in page["items"]]
        start = page["next"]
    assert sorted(seen) == sorted(wanted)


def test_action_that_left_memory_is_answered_from_its_row(tangram):
    done = tangram.post(
        "/api/v1/actions?wait=60",
        {"task": "old", "kind": "exec", "cost": {"cpu": 1}, "exec": {"command": ["echo", "x"]}},
    )
    filler = {"actions": [{"task": "filler", "kind": "noop"}] * 1000}
    last = [tangram.post("/api/v1/actions/batch", filler) for _ in range(5)][-1]
    tangram.get(f"/api/v1/actions/{last['items'][-1]['id']}?wait=60")
    again = tangram.get(f"/api/v1/actions/{done['id']}")
    assert again["result"] == done["result"]
    assert again["timing"] == pytest.approx(done["timing"])
    assert again["outcome"] == "completed"
