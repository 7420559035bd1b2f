"""Limits of an environment that moves for an action that waits: a copy that takes longer than most waits is not begun."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from domain.errors import Conflict
from domain.moves import TOO_LARGE
from managers.cpu.disk_use import exceeds

#: Each file takes some time, whatever its size.
MOST_FILES: Final = 4000


def check_size(roots: Iterable[Path], most_bytes: int) -> None:
    """Raise Conflict where the trees below ``roots`` have more than so many bytes, or than `MOST_FILES`; 0 bytes: any do. Blocks."""
    if most_bytes and exceeds(roots, most_bytes, MOST_FILES):
        what = f"more than {most_bytes} bytes or {MOST_FILES} files"
        raise Conflict(f"the environment has {what}", code=TOO_LARGE)
