"""Absolute paths without an image, on `tangram up`: commands, sessions and files see one tree."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.up.conftest import Tangram
from tests.architecture.tree import ROOT
from tests.conformance.isolations import isolations

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif("bwrap" not in isolations(), reason="no sandbox works here"),
]
HERE = "/api/v1/trajectories/anywhere-1"


def test_what_is_written_anywhere_is_seen_by_commands_sessions_and_files(
    tangram: Tangram, tmp_path: Path
) -> None:
    def act(script: str, **more: str) -> str:
        work = {"command": ["sh", "-c", script], **more}
        action = {
            "task": "t", "trajectory": "anywhere-1", "kind": "exec", "cost": {"cpu": 1}, "exec": work
        }  # fmt: skip
        done = tangram.post("/api/v1/actions?wait=120", action)
        assert done["outcome"] == "completed", done
        return str(done["result"]["stdout"])

    said = act("pwd; mkdir /srv/agent; echo of the agent >/srv/agent/note", cwd="/tmp")
    assert said == "/tmp\n"
    (tmp_path / "put").write_text("put")
    for words in (
        ["cp", str(tmp_path / "put"), "anywhere-1:/var/tmp/put"],
        ["cp", "anywhere-1:/srv/agent/note", str(tmp_path / "note")],
    ):
        subprocess.run(
            [sys.executable, "-m", "tangram_client", *words], cwd=ROOT, check=True,
            env={**os.environ, "TANGRAM_HOME": str(tangram.home)},
        )  # fmt: skip
    assert (tmp_path / "note").read_text() == "of the agent\n"
    tangram.post(f"{HERE}/sessions", {"name": "main", "cwd": "/srv/agent"})
    typed = {
        "task": "t", "trajectory": "anywhere-1", "kind": "exec", "cost": {"cpu": 1},
        "exec": {"command": ["cat note /var/tmp/put"], "session": "main"},
    }  # fmt: skip
    assert tangram.post("/api/v1/actions?wait=120", typed)["result"]["stdout"].split() == [
        "of", "the", "agent", "put",
    ]  # fmt: skip
    tangram.post(f"{HERE}/finish", {})
