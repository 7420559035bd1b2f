"""Start log: marks of the attempts at actions that may have run, on disk before they do.

An attempt's mark is appended and synced before its command is spawned. After a crash, an attempt with
a mark may have run; one without a mark did not. The file is a list of lines, ``+ mark`` and
``- mark``. A torn last line is a mark whose command was never spawned, since spawning waits for the
sync; so it is dropped.

A `StartLog` is not safe for threads. A `StartLogWriter` owns one in a thread of its own: coroutines that
add marks at the same moment share one sync, outside the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from domain.ids import ActionId
from domain.ports import Leftover

T = TypeVar("T")
_log = logging.getLogger(__name__)
_SLACK_LINES: Final = 1024


class StartLog:
    """The marks of one driver."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._live: dict[str, None] = {}
        self._lines = 0
        self._size = 0
        self._descriptor = -1

    def open(self) -> list[str]:
        """Return the marks that a predecessor added and did not remove, oldest first."""
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
        """Add marks; when this returns, they are on disk."""
        new = list(marks)
        self._append(b"".join(b"+ %s\n" % mark.encode() for mark in new))
        os.fdatasync(self._descriptor)
        self._live.update(dict.fromkeys(new))
        self._lines += len(new)

    def remove(self, marks: Iterable[str]) -> None:
        """Remove marks. Not synced: a mark that reappears after a crash is merely reported."""
        known = self._live.keys() & set(marks)
        for mark in known:
            del self._live[mark]
        if self._lines > 2 * len(self._live) + _SLACK_LINES:
            self._rewrite()
        elif known:
            self._append(b"".join(b"- %s\n" % mark.encode() for mark in known))
            self._lines += len(known)

    def close(self) -> None:
        """Close the file."""
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
            sync_directory(self._path.parent)
        except OSError:
            os.close(descriptor)
            raise
        self.close()
        self._descriptor, self._size, self._lines = descriptor, len(content), len(self._live)


class WithdrawnError(Exception):
    """The attempt was withdrawn before it was marked; nothing was started."""


@dataclass(frozen=True)
class _Job(Generic[T]):
    mark: str
    work: Callable[[], T]
    withdrawn: Callable[[], bool]
    done: asyncio.Future[T]


class StartLogWriter:
    """One thread that writes all waiting marks with one sync, then starts their attempts.

    Marking and starting happen in this order, and both block; so one thread does both, in order of
    arrival.
    """

    def __init__(self, log: StartLog, name: str) -> None:
        self._log = log
        self._queue: queue.SimpleQueue[_Job[Any] | tuple[str, ...] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def after(
        self, mark: str, work: Callable[[], T], withdrawn: Callable[[], bool] = lambda: False
    ) -> asyncio.Future[T]:
        """Mark an attempt, then call its ``work`` in the thread.

        The future fails with OSError, with the error of ``work``, or with WithdrawnError when the
        attempt was ``withdrawn`` before; nothing was marked then.
        """
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.put(_Job(mark, work, withdrawn, done))
        return done

    async def add(self, mark: str) -> None:
        """Mark one attempt; when this returns, the mark is on disk. Raises OSError."""
        await self.after(mark, _nothing)

    def remove(self, marks: Iterable[str]) -> None:
        """Remove marks, asynchronously."""
        self._queue.put(tuple(marks))

    def close(self) -> None:
        """Finish the queue, and close the file. Blocks."""
        self._queue.put(None)
        self._thread.join()
        self._log.close()

    def _work(self) -> None:
        while True:
            batch = [self._queue.get()]
            with contextlib.suppress(queue.Empty):
                while True:
                    batch.append(self._queue.get_nowait())
            self._mark_all([job for job in batch if isinstance(job, _Job)])
            self._remove([mark for job in batch if isinstance(job, tuple) for mark in job])
            if None in batch:
                return

    def _mark_all(self, jobs: list[_Job[Any]]) -> None:
        wanted = []
        for job in jobs:
            if job.withdrawn():
                _resolve(job.done, error=WithdrawnError())
            else:
                wanted.append(job)
        if not wanted:
            return
        try:
            self._log.add(job.mark for job in wanted)
        except Exception as error:  # a dead thread would block every later action
            for job in wanted:
                _resolve(job.done, error=error)
            return
        for job in wanted:
            try:
                result = job.work()
            except Exception as error:  # the run classifies it
                _resolve(job.done, error=error)
            else:
                _resolve(job.done, result)

    def _remove(self, marks: list[str]) -> None:
        if not marks:
            return
        try:
            self._log.remove(marks)
        except OSError as error:
            # A mark that stays is reported once more after a restart; nothing is lost.
            _log.warning("start marks could not be removed: %s", error)


def leftover(mark: str, *, ended: bool, detail: str = "") -> Leftover:
    """Return the attempt that a predecessor marked with ``mark``."""
    action_id, _, attempt = mark.rpartition("#")
    return Leftover(ActionId(action_id), int(attempt), ended, detail)


def _nothing() -> None:
    """Start nothing: the mark alone was requested."""


def _resolve(
    future: asyncio.Future[Any], result: object = None, error: Exception | None = None
) -> None:
    def resolve() -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    # The loop may have been closed during the write; then no coroutine waits.
    with contextlib.suppress(RuntimeError):
        future.get_loop().call_soon_threadsafe(resolve)


def _is_mark(text: str) -> bool:
    action_id, _, attempt = text.rpartition("#")
    return bool(action_id) and attempt.isdecimal()


def sync_directory(path: Path) -> None:
    """Sync a directory: the names of its files."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
