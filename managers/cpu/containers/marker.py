"""Starting marks from an event loop: one thread writes them, all that wait with one sync."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from managers.marks import MarkLog

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Mark:
    name: str
    done: asyncio.Future[None]


class Marker:
    """Writes the marks of one driver."""

    def __init__(self, marks: MarkLog) -> None:
        self._marks = marks
        self._queue: queue.SimpleQueue[_Mark | Sequence[str] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="tangram-marker", daemon=True)
        self._thread.start()

    async def mark(self, name: str) -> None:
        """Mark an attempt as started; it is on disk when this returns. Raises OSError."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put(_Mark(name, done))
        await done

    def forget(self, names: Sequence[str]) -> None:
        """Take marks back, some time."""
        self._queue.put(tuple(names))

    def close(self) -> None:
        """Finish what is queued, and end. Blocks."""
        self._queue.put(None)
        self._thread.join()
        self._marks.close()

    def _work(self) -> None:
        while True:
            batch = [self._queue.get()]
            with contextlib.suppress(queue.Empty):
                while True:
                    batch.append(self._queue.get_nowait())
            self._add([job for job in batch if isinstance(job, _Mark)])
            self._remove([name for job in batch if isinstance(job, tuple) for name in job])
            if None in batch:
                return

    def _add(self, wanted: list[_Mark]) -> None:
        if not wanted:
            return
        failure: Exception | None = None
        try:
            self._marks.add(mark.name for mark in wanted)
        except Exception as error:  # a thread that dies would leave every later action waiting
            failure = error
        for mark in wanted:
            _settle(mark.done, failure)

    def _remove(self, names: list[str]) -> None:
        if not names:
            return
        try:
            self._marks.remove(names)
        except OSError as error:
            # A mark that stays is reported once more after a restart; nothing is lost.
            _log.warning("starting marks could not be taken back: %s", error)


def _settle(future: asyncio.Future[None], failure: Exception | None) -> None:
    def settle() -> None:
        if future.done():
            return
        if failure is None:
            future.set_result(None)
        else:
            future.set_exception(failure)

    # The loop may have been closed while we wrote; then nobody waits.
    with contextlib.suppress(RuntimeError):
        future.get_loop().call_soon_threadsafe(settle)
