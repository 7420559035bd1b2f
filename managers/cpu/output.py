"""Output of a command: kept up to a limit, and read beyond it so that the command never blocks.

Output beyond the limit is moved to ``/dev/null`` inside the kernel, at intervals: a command that
prints without end costs the worker almost nothing, and waits on its pipe meanwhile.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import fcntl
import os
from pathlib import Path
from typing import Final

_CHUNK_BYTES: Final = 65536
#: Size of a pipe whose content is dropped, and the interval between drops: 200 MB/s at most.
_WIDE_PIPE_BYTES: Final = 2**20
_DROP_SECONDS: Final = 0.005
#: A drain at the end need not read more than a pipe may hold.
_DRAIN_CHUNKS: Final = 32


class Capture:
    """One output stream of a command, read from a new pipe or from the ``named`` pipe on disk."""

    def __init__(self, limit_bytes: int, named: Path | None = None) -> None:
        self._limit = max(0, limit_bytes)
        self._kept = bytearray()
        self.truncated = False
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._null = -1
        if named is None:
            self._read_end, self.write_end = os.pipe()
            os.set_blocking(self._read_end, False)
        else:
            # For writing too: it must not seem to end before its first writer opens it.
            self._read_end = os.open(named, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            self.write_end = -1
        self._loop.add_reader(self._read_end, self._read)

    def spawned(self) -> None:
        """Close our copy of the writing end: the command has its own."""
        os.close(self.write_end)
        self.write_end = -1

    def finish(self) -> str:
        """Read what is in the pipe already, close it, and return the kept text.

        Does not wait for its end: a process that holds the other end must not block us.
        """
        for _ in range(_DRAIN_CHUNKS):
            if self.truncated or not self._read():
                break
        self.close()
        return _decoded(self._kept, truncated=self.truncated)

    def close(self) -> None:
        """Close all descriptors; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._read_end >= 0:
            self._loop.remove_reader(self._read_end)
            os.close(self._read_end)
            self._read_end = -1
        if self._null >= 0:
            os.close(self._null)
            self._null = -1
        if self.write_end >= 0:
            self.spawned()

    def _read(self) -> bool:
        """Read one chunk; return whether there may be more."""
        try:
            chunk = os.read(self._read_end, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self._loop.remove_reader(self._read_end)
            return False
        room = self._limit - len(self._kept)
        self._kept += chunk[:room]
        if room < len(chunk):
            self.truncated = True
            self._begin_dropping()
        return True

    def _begin_dropping(self) -> None:
        self._loop.remove_reader(self._read_end)
        # An administrator's limit on pipe sizes only makes it slower.
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._read_end, fcntl.F_SETPIPE_SZ, _WIDE_PIPE_BYTES)
        self._null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        self._drop()

    def _drop(self) -> None:
        try:
            moved = os.splice(
                self._read_end, self._null, _WIDE_PIPE_BYTES, flags=os.SPLICE_F_NONBLOCK
            )
        except BlockingIOError:
            moved = -1
        self._timer = self._loop.call_later(_DROP_SECONDS, self._drop) if moved else None


class BoundedOutput:
    """One output stream of a command that arrives in pieces."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = max(0, limit_bytes)
        self._kept = bytearray()
        self.truncated = False

    def add(self, content: bytes) -> None:
        """Add a piece."""
        room = self._limit - len(self._kept)
        self._kept += content[:room]
        self.truncated = self.truncated or room < len(content)

    def finish(self) -> str:
        """Return the kept text."""
        return _decoded(self._kept, truncated=self.truncated)

    def close(self) -> None:
        """Do nothing: no descriptor is open."""


def _decoded(kept: bytearray, *, truncated: bool) -> str:
    """Return the text of kept bytes; a character that the limit cut is dropped."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return decoder.decode(bytes(kept), final=not truncated)
