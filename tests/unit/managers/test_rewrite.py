"""pytest uses the cores it is granted, where it can and where that was asked for."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from domain.action import PYTEST_XDIST
from managers.cpu.command_line import rewritten

UNTOUCHED = [
    ["make", "test"],
    ["pytest", "-n", "3"],
    ["pytest", "-n3", "tests"],
    ["pytest", "--numprocesses=2"],
    ["pytest", "-p", "no:xdist"],
    ["python", "run.py", "pytest"],
    ["python", "-m", "unittest"],
]
#: What it was called with is all this one prints; asked for its plugin it ends with $XDIST.
PROGRAM = """#!/bin/sh
case "$*" in *'-p xdist --version') echo noise; exit "$XDIST" ;; esac
printf '%s|' "$@"
"""


@pytest.fixture(params=["pytest", "python3 -m pytest"])
def command(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """A command whose program is ours."""
    first, *rest = request.param.split()
    program = tmp_path / first
    program.write_text(PROGRAM)
    program.chmod(0o755)
    return [str(program), *rest, "-q", "it's a test"]


def run(command: list[str], *, plugin: bool) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "XDIST": "0" if plugin else "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True)


def test_workers_are_as_many_as_units_where_the_plugin_is(command: list[str]) -> None:
    done = run(rewritten(command, 4, PYTEST_XDIST), plugin=True)
    prefix = "-m|pytest|" if "-m" in command else ""
    assert done.stdout == f"{prefix}-n|4|-q|it's a test|"
    assert done.stderr == ""


def test_a_missing_plugin_is_reported_and_changes_nothing(command: list[str]) -> None:
    done = run(rewritten(command, 4, PYTEST_XDIST), plugin=False)
    assert done.stdout == run(command, plugin=False).stdout
    assert "pytest-xdist is not in this environment" in done.stderr


@pytest.mark.parametrize("command", UNTOUCHED, ids=" ".join)
def test_commands_without_pytest_or_with_stated_workers_are_unchanged(command: list[str]) -> None:
    assert rewritten(command, 4, PYTEST_XDIST) == command


def test_nothing_is_rewritten_unasked() -> None:
    assert rewritten(["pytest"], 4, None) == ["pytest"]
