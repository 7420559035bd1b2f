"""The files of the project."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_MADE_BY_RUNNING = frozenset({"__pycache__", "node_modules", "staticfiles"})
PACKAGES = (
    "contract",
    "dispatcher",
    "domain",
    "facades",
    "managers",
    "placement",
    "rollout",
    "scheduler",
    "simulator",
    "tangram_client",
    "tangram_web",
)


@cache
def files() -> tuple[Path, ...]:
    """Return all files that belong to the project."""
    paths = _listed_by_git() or _walked()
    return tuple(sorted(path for path in paths if path.is_file()))


def _listed_by_git() -> list[Path]:
    """Return the files that git tracks or would track; nothing without git or a clone."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others"]
    try:
        listed = subprocess.run(
            [*command, "--exclude-standard"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    return [ROOT / name for name in listed.split("\0") if name]


def _walked() -> list[Path]:
    """Return the files here that are not made by running the project (see .gitignore)."""
    paths: list[Path] = []
    for folder, subfolders, names in os.walk(ROOT):
        subfolders[:] = [
            each
            for each in subfolders
            if each == ".ci" or not (each.startswith(".") or each in _MADE_BY_RUNNING)
        ]
        paths.extend(Path(folder) / each for each in names)
    return [path for path in paths if path.suffix not in {".pyc", ".log", ".sqlite3"}]


def own_files() -> list[Path]:
    """Return all texts that we wrote: nothing vendored, no pictures."""
    return [
        path
        for path in files()
        if "vendor" not in path.parts and path.name != "LICENSE" and path.suffix != ".png"
    ]


def python_files(*folders: str) -> list[Path]:
    """Return our Python files below ``folders`` (default: everywhere), without migrations."""
    tops = {ROOT / folder for folder in folders}
    return [
        path
        for path in own_files()
        if path.suffix == ".py"
        and "migrations" not in path.parts
        and (not tops or tops.intersection(path.parents))
    ]


def name(path: Path) -> str:
    """Return a path as people write it."""
    return str(path.relative_to(ROOT))
