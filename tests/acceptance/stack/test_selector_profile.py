"""`tangram selector profile` on a running Tangram: killed while it measures, and run again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

import pytest

from examples.tensor_parallel.declare import declaration
from tangram_client import Client
from tangram_client._calls import apply_config
from tangram_client.errors import ConflictError
from tests.acceptance.up.conftest import Tangram
from tests.architecture.tree import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SIZES = {"vocabulary": 512, "width": 64, "layers": 2, "heads": 4, "context": 256}
CELLS = [(tp, context, responses) for tp in (1, 2) for context in (64, 256) for responses in (2, 4)]


def measuring(tangram: Tangram, token: str) -> subprocess.Popen[str]:
    """Start the command."""
    command = [
        sys.executable, "-m", "tangram_web.command", "-o", "json", "selector", "profile", "profiled",
        "--hardware", "two ranks", "--engine", "examples", "--rounds", "2", "--tokens", "8",
    ]  # fmt: skip
    environment = {**os.environ, "TANGRAM_URL": tangram.access["url"], "TANGRAM_TOKEN": token}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )  # fmt: skip


def cells(client: Client) -> Mapping[tuple[int, int, int], dict[str, Any]]:
    """Return what the selector keeps, by degree, context and responses."""
    try:
        profile = client.selectors.profile("profiled")
    except ConflictError:
        return {}
    return {
        (each["parallelism"]["tp"], each["context"], each["responses"]): each
        for each in profile["cells"]
    }


def test_a_profile_that_is_killed_continues_with_the_cells_that_are_missing(
    tangram: Tangram, admin_token: str
) -> None:
    lengths = {"contexts": [64, 256], "responses": [2, 4]}
    declared = declaration("profiled", memory_bytes=2**29, sizes=SIZES, selector=lengths)
    with Client(tangram.access["url"], admin_token) as client:
        client.send(apply_config(declared))
        first = measuring(tangram, admin_token)
        until = time.monotonic() + 240
        while len(before := cells(client)) < 2:
            assert first.poll() is None, first.communicate()
            assert time.monotonic() < until, "no cell was measured"
            time.sleep(0.05)
        first.send_signal(signal.SIGKILL)
        first.communicate()

        said, errors = measuring(tangram, admin_token).communicate(timeout=300)

        after = cells(client)
        assert sorted(after) == sorted(CELLS), errors
        assert all(after[key] == kept for key, kept in before.items()), "a cell was measured again"
        assert all(each["tokens_per_gpu_second"] > 0 for each in after.values())
        assert len(json.loads(said)["cells"]) == len(CELLS)
        client.send(apply_config(_without_the_service()))


def _without_the_service() -> str:
    """Return the document that ends the selector's service when it is idle: other tests have its GPUs."""
    service = declaration("profiled", memory_bytes=2**29, sizes=SIZES).split("\n---\n")[0]
    document = json.loads(service)
    document["spec"]["idle_timeout_seconds"] = 1
    return json.dumps(document)
