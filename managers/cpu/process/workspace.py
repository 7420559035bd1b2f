"""Directories that commands work in: one per trajectory, one for each action that stands alone."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import threading
from pathlib import Path
from typing import Final

from domain.errors import InvalidRequest
from domain.ids import ActionId, TrajectoryKey
from managers.cpu.process.trees import remove_tree

#: Where a command finds its workspace inside a sandbox, and how paths may name it anywhere.
MOUNT: Final = "/workspace"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_+@-]+")
_READABLE_LENGTH: Final = 80


class Workspaces:
    """The workspaces below one state directory."""

    def __init__(self, state_directory: Path) -> None:
        self._trajectories = state_directory / "workspaces"
        self._alone = state_directory / "alone"
        self._yard = state_directory / "yard"
        # Two deletions at once would take each other's names in the yard.
        self._deleting = threading.Lock()

    def open(self) -> None:
        """Make the directories, and delete what a predecessor kept only for a moment."""
        for directory in (self._trajectories, self._alone, self._yard):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for leftover in (*self._alone.iterdir(), *self._yard.iterdir()):
            self.remove(leftover)

    def of(self, trajectory: TrajectoryKey) -> Path:
        """Return where a trajectory's workspace is, whether it exists or not."""
        return self._trajectories / safe_name(trajectory)

    def ensure(self, trajectory: TrajectoryKey) -> Path:
        """Return a trajectory's workspace, made when it is not there."""
        path = self.of(trajectory)
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def alone(self, action_id: ActionId) -> Path:
        """Make a workspace for one action that belongs to no trajectory."""
        return Path(tempfile.mkdtemp(prefix=f"{safe_name(action_id)}.", dir=self._alone))

    def remove(self, path: Path) -> None:
        """Delete a workspace. Blocks; one that is not there is fine."""
        with self._deleting:
            if path.is_symlink() or path.is_file():
                path.unlink()
            elif path.exists():
                remove_tree(path, self._yard)


def safe_name(name: str) -> str:
    """Return a file name that is readable, distinct for each ``name``, and cannot climb."""
    digest = hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=8).hexdigest()
    return f"{_UNSAFE.sub('_', name)[:_READABLE_LENGTH]}.{digest}"


def split_path(path: str) -> list[str]:
    """Split a path of the user into parts below the workspace.

    It is relative, or absolute inside ``/workspace``. Raises InvalidRequest when it leaves it.
    """
    if "\0" in path:
        raise InvalidRequest("a path cannot contain a zero byte", pointer="/path")
    inside = path
    if path.startswith("/"):
        if path != MOUNT and not path.startswith(f"{MOUNT}/"):
            raise InvalidRequest(
                f"{path!r} is outside the workspace: give a relative path, or one below {MOUNT}",
                pointer="/path",
            )
        inside = path.removeprefix(MOUNT)
    parts = [part for part in inside.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise InvalidRequest(
            f"{path!r} climbs with '..': give the path without it", pointer="/path"
        )
    return parts


def working_directory(workspace: Path, cwd: str | None) -> tuple[Path, str]:
    """Return where a command starts: the real directory, and its path below the workspace
    (empty, or with a leading slash).

    Links inside the workspace are followed as long as they stay in it. Raises InvalidRequest when
    ``cwd`` leaves the workspace, OSError when it is not there or no directory.
    """
    parts = split_path(cwd or "")
    root = os.path.realpath(workspace)
    real = os.path.realpath(os.path.join(root, *parts), strict=True)
    if real != root and not real.startswith(f"{root}/"):
        raise InvalidRequest(f"{cwd!r} is a link that leaves the workspace", pointer="/exec/cwd")
    if not os.path.isdir(real):
        raise NotADirectoryError(20, "Not a directory", cwd)
    return Path(real), real.removeprefix(root)
