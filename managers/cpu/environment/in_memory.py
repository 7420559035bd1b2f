"""Files of an environment that are in memory: no snapshot and no image of an engine has them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

#: Directories that may be in memory.
_IN_MEMORY: Final = (("dev", "shm"), ("tmp",), ("run",), ("var", "tmp"))
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def place_in_memory(root: Path) -> str:
    """Return a directory of a running environment that is in memory and not empty; empty: there is none. Follows no link."""
    top = os.open(root, _DIRECTORY & ~os.O_NOFOLLOW)
    try:
        device = os.fstat(top).st_dev
        for parts in _IN_MEMORY:
            handle = _opened(top, parts)
            if handle is None:
                continue
            try:
                if os.fstat(handle).st_dev != device and os.listdir(handle):
                    return "/" + "/".join(parts)
            finally:
                os.close(handle)
    finally:
        os.close(top)
    return ""


def _opened(top: int, parts: tuple[str, ...]) -> int | None:
    """Return a descriptor of a directory below ``top``; None where there is none."""
    handle = os.dup(top)
    for part in parts:
        try:
            deeper = os.open(part, _DIRECTORY, dir_fd=handle)
        except OSError:
            return None
        finally:
            os.close(handle)
        handle = deeper
    return handle
