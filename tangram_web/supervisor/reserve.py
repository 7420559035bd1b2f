"""Reserve of disk space in the data folder: a file that is deleted when the disk is full.

Redis ends when it cannot write, and SQLite refuses to. Deleting the reserve gives both some room at once,
until the node worker has ended the largest writer (`scheduler.runtime.node.disk_guard`) or an operator has
made space; then the file is made again. Its blocks are allocated, not only its length.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tangram_web.supervisor.children import Announce, Pause

#: Size of the file: a share of the file system, at most a fixed amount.
MOST_BYTES: Final = 64 * 2**20
_SHARE: Final = 20
#: It is deleted when less than this part of its size is free, and made again at this multiple.
_LEAST_SHARE: Final = 4
_ROOM: Final = 4
#: Between two looks: so long as a writer of `_FASTEST` needs for the room that is left, within these bounds.
_SOONEST_SECONDS: Final = 0.25
_LATEST_SECONDS: Final = 5.0
#: Bytes a second that no disk of today takes for long.
_FASTEST: Final = 4 * 2**30


class Reserve:
    """The reserve of one data folder."""

    def __init__(self, folder: Path, announce: Announce, size_bytes: int | None = None) -> None:
        """``size_bytes`` 0: no reserve; None: a twentieth of the file system, at most 64 MiB."""
        self.path = folder / "reserve.bin"
        self._folder = folder
        self._announce = announce
        total, _ = self._space()
        self.size_bytes = min(MOST_BYTES, total // _SHARE) if size_bytes is None else size_bytes

    async def keep(self, changed: Callable[[], None], pause: Pause = asyncio.sleep) -> None:
        """Run forever; ``changed`` is called when there is room again, by the reserve or beside it."""
        while True:
            try:
                if self.look():
                    changed()
            except OSError as error:
                self._announce(f"the reserve {self.path} cannot be managed: {error}")
                await pause(60.0)
            await pause(self._pause_seconds())

    def _pause_seconds(self) -> float:
        """Return the pause until the next look."""
        try:
            _, free = self._space()
        except OSError:
            free = 0
        return min(_LATEST_SECONDS, max(_SOONEST_SECONDS, free / _FASTEST))

    def look(self) -> bool:
        """Delete or make the file as the free space demands; return whether that made a difference."""
        _, free = self._space()
        if self.path.exists():
            if free * _LEAST_SHARE >= self.size_bytes:
                return False
            self.path.unlink()
            self._announce(
                f"the disk of {self._folder} is full: its reserve of"
                f" {self.size_bytes // 2**20} MiB is released"
            )
            return True
        if not self.size_bytes or free < self.size_bytes * _ROOM:
            return False
        self._make()
        return True

    def _make(self) -> None:
        draft = self.path.with_suffix(".new")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, self.size_bytes)
        except OSError:
            draft.unlink()
            raise
        finally:
            os.close(descriptor)
        draft.replace(self.path)

    def _space(self) -> tuple[int, int]:
        """Return the bytes of the file system, and those that are free."""
        space = os.statvfs(self._folder)
        return space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize
