"""The script for a card runs to its end on the processor, and says what it misses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT
from tests.conformance.test_torch_engine import PYTHON

SMALL = ("--model-mib", "4", "--service-mib", "1", "--seconds", "0.2", "--call-seconds", "0.01")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command], cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )


@pytest.mark.slow
def test_it_measures_restores_disk_and_sharing_and_says_that_it_was_no_card(tmp_path: Path) -> None:
    script = (PYTHON, "-m", "benchmarks.gpu_card")
    done = run(*script, "--device", "cpu", *SMALL, "--output", str(tmp_path))

    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "gpu_card-cpu.json").read_text())
    assert (found["card"], found["device"], found["changed_answers"]) == ("cpu", "cpu", 0)
    assert found["restore"]["weight_bytes"] == 4 * 2**20
    assert found["restore"]["disk_load_seconds"] > 0
    rivals = found["sharing"]["rivals"]
    calls = found["sharing"]["calls"]
    assert all(rival["served"] + rival["refused"] == calls for rival in rivals.values())
    assert (rivals["shared"]["refused"], rivals["fcfs"]["refused"]) == (0, 0)
    assert found["sharing"]["restores"] >= 3


def test_it_says_what_is_missing() -> None:
    done = run(sys.executable, "-S", "-m", "benchmarks.gpu_card")

    assert done.returncode == 2
    assert "no torch in" in done.stderr
