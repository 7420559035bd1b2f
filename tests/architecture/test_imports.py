"""Imports go downward only, and a violation is seen."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.tree import PACKAGES, ROOT

#: File → a line that breaks one contract; the contract's name in pyproject.toml.
PLANTED = {
    "domain/action.py": ("import scheduler.core", "Imports go downward only"),
    "tangram_client/errors.py": ("import domain.ids", "The client imports nothing of ours"),
    "managers/cpu/ledger.py": (
        "import redis",
        "The core, the ledgers and the vocabulary do no I/O",
    ),
    "managers/gpu/driver.py": (
        "import managers.quota.call_driver",
        "Managers are independent of each other",
    ),
    "scheduler/runtime/__init__.py": (
        "import celery",
        "The runtime knows neither Django nor Celery",
    ),
    "simulator/agenda.py": (
        "import redis",
        "The simulator needs no server",
    ),
    "tangram_web/pools/apps.py": (
        "import scheduler",
        "Apps never import the scheduler; composition roots do",
    ),
}

pytestmark = pytest.mark.slow


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Check the contracts of the checkout in ``folder``."""
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_imports_go_downward_only():
    checked = lint_imports(ROOT)

    assert checked.returncode == 0, checked.stdout


def test_planted_violations_are_caught_each_by_its_contract(tmp_path):
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package)
    for file, (line, _) in PLANTED.items():
        with (tmp_path / file).open("a") as module:
            module.write(f"\n{line}\n")

    checked = lint_imports(tmp_path)

    broken = {
        line.partition(" BROKEN")[0] for line in checked.stdout.splitlines() if "BROKEN" in line
    }
    assert checked.returncode != 0
    assert broken == {contract for _, contract in PLANTED.values()}
