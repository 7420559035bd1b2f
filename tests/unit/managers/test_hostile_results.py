"""The results of hostile programs: each mode is stored when it is complete, whatever becomes of the next one."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import hostile
from tests.hostile.program import Mode

TABLE = {"disk": {"programs": 3, "contained": 2, "breach": 1}}


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[Mode]:
    """The modes that were played; that of an ordinary user ends the benchmark."""
    modes: list[Mode] = []

    async def run(mode: Mode, given: argparse.Namespace, engine: str) -> dict[str, Any]:
        modes.append(mode)
        if mode is Mode.BWRAP_USER:
            raise KeyboardInterrupt
        return TABLE

    monkeypatch.setattr(hostile, "run", run)
    return modes


def test_a_complete_mode_is_stored_before_the_next_one(played: list[Mode], tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        hostile.main(["--mode", "bwrap", "--mode", "user"], tmp_path)

    assert played == [Mode.BWRAP, Mode.BWRAP_USER]
    [stored] = tmp_path.iterdir()
    result = json.loads(stored.read_text())
    assert stored.name == "hostile-bwrap.json"
    assert (result["mode"], result["families"]) == (Mode.BWRAP, TABLE)
    assert (result["totals"]["programs"], result["totals"]["breach"]) == (3, 1)


@pytest.mark.parametrize("choice", [["--family", "disk"], ["--name", "fills"], ["--no-store"]])
def test_a_part_of_a_mode_is_not_stored(
    played: list[Mode], tmp_path: Path, choice: list[str]
) -> None:
    with pytest.raises(SystemExit, match="1 programs did what they should not"):
        hostile.main(["--mode", "process", *choice], tmp_path)

    assert played == [Mode.PROCESS]
    assert list(tmp_path.iterdir()) == []
