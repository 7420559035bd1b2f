"""Schemathesis over the whole schema: whatever is sent, nothing answers with a 5xx."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_no_request_makes_a_server_error(tangram, admin_token: str, tmp_path: Path):
    access = tangram.access
    command = [
        *(str(Path(sys.executable).with_name("schemathesis")), "run"),
        access["url"] + "/api/v1/openapi.json",
        *("--checks", "not_a_server_error"),
        *("--phases", "examples,coverage,fuzzing", "--max-examples", "12", "--seed", "1"),
        *("--exclude-path", "/api/v1/events"),  # it never ends, by design
        *("-H", f"Authorization: Bearer {admin_token}"),
        *("--request-timeout", "30", "--no-color"),
    ]
    environment = {
        **os.environ,
        "SCHEMATHESIS_HOOKS": "tests.acceptance.stack.fuzz_hooks",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=540
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
