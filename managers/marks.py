"""Starting marks: which attempts at actions may have run, on disk before they do.

An attempt's name is appended and synced before its command is spawned. After a crash the marks say
what may have run; an attempt without one certainly did not. The file is a list of lines, ``+ mark``
and ``- mark``. A torn last line is a mark whose command was never spawned, since spawning waits for
the sync; so it is dropped.

A `MarkLog` is not safe for threads. `SharedMarks` lets the coroutines of one event loop use it: those
that mark at the same moment share one sync, which happens beside the loop.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_SLACK_LINES: Final = 1024


class MarkLog:
    """The marks of one driver."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._live: dict[str, None] = {}
        self._lines = 0
        self._size = 0
        self._descriptor = -1

    def open(self) -> list[str]:
        """Read what a predecessor marked and did not take back, oldest first."""
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            content = b""
        for line in content.split(b"\n")[:-1]:
            sign, _, text = line.decode(errors="replace").partition(" ")
            if sign == "+" and _is_mark(text):
                self._live[text] = None
            elif sign == "-":
                self._live.pop(text, None)
        self._rewrite()
        return list(self._live)

    def add(self, marks: Iterable[str]) -> None:
        """Mark attempts as started; when this returns, the marks are on disk."""
        new = list(marks)
        self._append(b"".join(b"+ %s\n" % mark.encode() for mark in new))
        os.fdatasync(self._descriptor)
        self._live.update(dict.fromkeys(new))
        self._lines += len(new)

    def remove(self, marks: Iterable[str]) -> None:
        """Take marks back. Not synced: a mark that returns after a crash is merely reported."""
        known = self._live.keys() & set(marks)
        for mark in known:
            del self._live[mark]
        if self._lines > 2 * len(self._live) + _SLACK_LINES:
            self._rewrite()
        elif known:
            self._append(b"".join(b"- %s\n" % mark.encode() for mark in known))
            self._lines += len(known)

    def close(self) -> None:
        """Let the file go."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _append(self, data: bytes) -> None:
        try:
            written = os.write(self._descriptor, data)
            if written < len(data):
                raise OSError(f"{self._path}: {written} of {len(data)} bytes written")
        except OSError:
            # A half-written line must not become the head of the next one.
            os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(data)

    def _rewrite(self) -> None:
        temporary = self._path.with_suffix(".new")
        content = b"".join(b"+ %s\n" % mark.encode() for mark in self._live)
        descriptor = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        try:
            with os.fdopen(os.dup(descriptor), "wb") as file:
                file.write(content)
            os.fsync(descriptor)
            temporary.replace(self._path)
            _sync_directory(self._path.parent)
        except OSError:
            os.close(descriptor)
            raise
        self.close()
        self._descriptor, self._size, self._lines = descriptor, len(content), len(self._live)


class SharedMarks:
    """Marks of many coroutines of one event loop."""

    def __init__(self, log: MarkLog) -> None:
        self._log = log
        #: Held by whoever touches the log, in whatever thread.
        self._turn = threading.Lock()
        self._syncing = asyncio.Lock()
        self._waiting: list[str] = []
        #: Writes those that wait, once the write before is done.
        self._next: asyncio.Task[None] | None = None

    async def add(self, mark: str) -> None:
        """Mark one attempt; when this returns, the mark is on disk. Raises OSError."""
        self._waiting.append(mark)
        if self._next is None:
            self._next = asyncio.create_task(self._sync())
        await asyncio.shield(self._next)

    async def _sync(self) -> None:
        async with self._syncing:
            batch, self._waiting, self._next = self._waiting, [], None
            await asyncio.to_thread(self._write, batch)

    def _write(self, marks: list[str]) -> None:
        with self._turn:
            self._log.add(marks)

    def remove(self, marks: Iterable[str]) -> None:
        """Take marks back."""
        with self._turn:
            self._log.remove(marks)

    def close(self) -> None:
        """Let the file go."""
        with self._turn:
            self._log.close()


def _is_mark(text: str) -> bool:
    action_id, _, attempt = text.rpartition("#")
    return bool(action_id) and attempt.isdecimal()


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
