"""The script for a card runs to its end on the processor, and says what it misses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import gpu_card
from tests.architecture.tree import ROOT
from tests.conformance.test_torch_engine import PYTHON

SMALL = ("--model-mib", "4", "--service-mib", "1", "--seconds", "0.2", "--call-seconds", "0.01")


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env={**os.environ, **variables},
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
    counted = ("served", "refused", "unserved")
    assert all(sum(rival[each] for each in counted) == calls for rival in rivals.values())
    assert (rivals["shared"]["refused"], rivals["fcfs"]["refused"]) == (0, 0)
    assert found["sharing"]["restores"] >= 3


def test_it_says_what_is_missing() -> None:
    done = run(sys.executable, "-S", "-m", "benchmarks.gpu_card")

    assert done.returncode == 2
    assert "no torch in" in done.stderr


@pytest.mark.slow
def test_without_a_card_it_says_so_in_one_line() -> None:
    done = run(PYTHON, "-m", "benchmarks.gpu_card", CUDA_VISIBLE_DEVICES="")

    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("gpu_card: torch ")
    assert "finds no NVIDIA card here" in line


def test_measurements_stay_when_a_later_step_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No torch is needed for that: every step is a stand-in."""

    def fails(*_: object) -> None:
        raise RuntimeError("CUDA error: out of memory")

    stands_in: dict[str, object] = {
        "find_device": lambda _: SimpleNamespace(type="cuda"),
        "describe": lambda _: {"card": "NVIDIA H200"},
        "sizes": lambda *_: (2**20, 2**20),
        "free_bytes": lambda _: 0,
        "restoring": lambda *_: {"share_of_limit": 0.97, "changed": 0},
        "sharing": fails,
    }
    for name, instead in stands_in.items():
        monkeypatch.setattr(gpu_card, name, instead)
    monkeypatch.setattr(sys, "argv", ["gpu_card", "--output", str(tmp_path)])

    assert gpu_card.main() == 1
    found = json.loads((tmp_path / "gpu_card-nvidia-h200.json").read_text())
    assert found["restore"]["share_of_limit"] == 0.97
    assert found["failed"] == "RuntimeError: CUDA error: out of memory"
    assert found["as_wanted"] is False


@pytest.mark.slow
def test_it_ends_in_time_and_says_what_was_left_undone(tmp_path: Path) -> None:
    """No time at all is left for the calls, and four services do."""
    script = (PYTHON, "-m", "benchmarks.gpu_card", "--device", "cpu", *SMALL)
    done = run(*script, "--minutes", "0.0001", "--output", str(tmp_path))

    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "gpu_card-cpu.json").read_text())
    assert found["sharing"]["services"] == 4
    assert found["sharing"]["arrival_seconds"] == 0.0
