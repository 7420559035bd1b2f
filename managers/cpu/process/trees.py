"""Deleting whatever a command may have built: read-only, very deep, full of links."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Final

_OWNER_ALL: Final = 0o700


def remove_tree(root: Path, yard: Path) -> None:
    """Delete the directory ``root``; nothing may be running in it.

    Directories inside are first moved up into ``yard`` (same file system), one after another: no
    depth of nesting exhausts the stack or the length of a path. Links are removed, not followed.
    """
    numbers = itertools.count()
    pending = [_move(root, yard, numbers)]
    while pending:
        directory = pending.pop()
        with os.scandir(directory) as entries:
            for entry in list(entries):
                if entry.is_dir(follow_symlinks=False):
                    pending.append(_move(Path(entry.path), yard, numbers))
                else:
                    os.unlink(entry.path)
        directory.rmdir()


def _move(directory: Path, yard: Path, numbers: itertools.count[int]) -> Path:
    # A directory without write permission can neither be moved nor emptied by its owner.
    os.chmod(directory, _OWNER_ALL)
    while True:
        target = yard / f"{os.getpid()}.{next(numbers)}"
        if not os.path.lexists(target):
            return directory.rename(target)
