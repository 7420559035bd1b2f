"""Parts of the version before node groups and object stores work together with those of the present one, under load."""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

import pytest

from benchmarks.upgrade import TARGETS, play
from tangram_web.supervisor import stack
from tests.not_run import NotRun

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1200)]

#: Came with node groups.
_CAME = "managers/launch/launcher.py"


@pytest.fixture(scope="module")
def revision() -> str:
    """Return the last revision without node groups."""
    git = ["git", "-C", str(stack.ROOT)]
    log = [*git, "log", "--diff-filter=A", "--format=%H^", "--", _CAME]
    found = subprocess.run(log, capture_output=True, text=True, check=False).stdout.split()
    if not found or subprocess.run([*git, "cat-file", "-e", found[-1]], check=False).returncode:
        raise NotRun(f"no revision before {_CAME}: the clone is shallow (git fetch --unshallow)")
    return found[-1]


@pytest.mark.parametrize("rollback", [False, True], ids=["upgrade", "rollback of PostgreSQL"])
def test_parts_are_replaced_by_those_of_another_version_under_load(
    revision: str, rollback: bool, tmp_path: Path
) -> None:
    options = argparse.Namespace(
        earlier=revision, rollback=rollback, engine="none", trainers=2, postgres=rollback
    )
    result = play(options, tmp_path)
    assert {each: result[each] for each in TARGETS} == dict.fromkeys(TARGETS, 0), result
    assert result["uses_tried"] >= 100
