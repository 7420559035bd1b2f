"""The front door installs no package whose hash is not in the lock."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from requirements.lock import requirement_lines
from tests.architecture.tree import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with pip alone: to make one takes longer than what is tested."""
    folder = tmp_path_factory.mktemp("fresh") / "venv"
    venv.create(folder, symlinks=True, with_pip=True)
    return folder


@pytest.fixture
def checkout(fresh: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Make a copy of the front door with a lock, a fresh environment, and nothing else."""

    def make(lock: str) -> Path:
        (tmp_path / "requirements").mkdir()
        shutil.copy(ROOT / "tangram", tmp_path)
        (tmp_path / "requirements" / "core.lock").write_text(lock)
        shutil.copytree(fresh, tmp_path / "venv", symlinks=True)
        return tmp_path

    return make


def install(folder: Path) -> subprocess.CompletedProcess[str]:
    """Call a verb, which installs first; there is no program behind it."""
    return subprocess.run(
        ["sh", folder / "tangram", "sim"],
        env={**os.environ, "TANGRAM_VENV": str(folder / "venv")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def lock_of(name: str) -> str:
    """Return the part of the lock that installs one package."""
    whole = (ROOT / "requirements" / "core.lock").read_text()
    found = re.search(rf"^{name}==.*?(?=^[a-z])", whole, re.MULTILINE | re.DOTALL)
    assert found is not None
    assert len(requirement_lines(found[0])) == 1
    return found[0]


def test_a_package_is_installed_if_its_hash_is_in_the_lock(checkout: Callable[[str], Path]) -> None:
    folder = checkout(lock_of("h11"))
    done = install(folder)

    assert (folder / "venv" / ".installed-core").exists(), done.stderr
    assert list((folder / "venv").glob("lib/python*/site-packages/h11"))


def test_a_package_with_another_hash_is_refused(checkout: Callable[[str], Path]) -> None:
    folder = checkout(re.sub(r"sha256:[0-9a-f]{64}", "sha256:" + "0" * 64, lock_of("h11")))
    done = install(folder)

    assert done.returncode == 1
    assert "DO NOT MATCH THE HASHES" in (folder / "venv" / "install-core.log").read_text()
    assert "pip could not install requirements/core.lock" in done.stderr
    assert not list((folder / "venv").glob("lib/python*/site-packages/h11"))


def test_a_lock_without_hashes_installs_nothing(checkout: Callable[[str], Path]) -> None:
    pin = requirement_lines(lock_of("h11"))[0].rstrip(" \\")
    folder = checkout(f"{pin}\n")

    assert install(folder).returncode == 1
    assert not list((folder / "venv").glob("lib/python*/site-packages/h11"))
