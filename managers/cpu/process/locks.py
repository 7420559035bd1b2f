"""The lock that keeps a second driver out of a state directory."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from domain.errors import Unavailable


def take_lock(directory: Path) -> int:
    """Lock a state directory until the returned descriptor is closed. Raises Unavailable."""
    handle = os.open(directory / "lock", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise Unavailable(f"another driver works in {directory}") from None
    return handle
