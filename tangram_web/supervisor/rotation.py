"""Logs that stay small: what is older is put aside, and the oldest goes.

A child writes into its log by itself, through a descriptor that it keeps; nobody can give it another.
So the file stays the same one: its newest part is copied to ``NAME.log.1``, what was there before to
``.2`` and so on, and then it is emptied. Children append, so the next line is the first one of the empty
file. A line that is written between copy and emptying is lost, as with ``logrotate``'s ``copytruncate``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

#: A log is put aside when it has passed this, and so many older ones are kept of each.
MOST_BYTES: Final = 16 * 2**20
KEPT: Final = 3
_PIECE_BYTES: Final = 2**20


def rotate(log: Path, most_bytes: int = MOST_BYTES, kept: int = KEPT) -> bool:
    """Put ``log`` aside if it has passed ``most_bytes``; say whether it had. Raises OSError.

    What is put aside is the newest ``most_bytes`` of it.
    """
    try:
        size = log.stat().st_size
    except FileNotFoundError:
        return False
    if size <= most_bytes:
        return False
    for number in range(kept - 1, 0, -1):
        older = _older(log, number)
        if older.exists():
            older.replace(_older(log, number + 1))
    draft = log.with_name(f"{log.name}.new")
    with log.open("rb") as source, draft.open("wb") as target:
        os.fchmod(target.fileno(), 0o600)
        source.seek(size - most_bytes)
        while piece := source.read(_PIECE_BYTES):
            target.write(piece)
    draft.replace(_older(log, 1))
    os.truncate(log, 0)
    return True


def _older(log: Path, number: int) -> Path:
    return log.with_name(f"{log.name}.{number}")
