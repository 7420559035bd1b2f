"""Hosted threads: parts of the runtime that run as threads of a Celery worker.

A part that fails ends its process: a worker without its part would look alive and do nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

log = logging.getLogger(__name__)

#: Time limit for a part to stop; the shutdown of its process continues after that.
STOP_SECONDS = 10.0


class HostedThread:
    """A part that runs in a thread until it is stopped."""

    def __init__(self, name: str, work: Callable[[threading.Event], None]) -> None:
        self.name = name
        self._work = work
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def ask(self) -> None:
        """Ask the part to stop, without waiting for it."""
        self._stop.set()

    def stop(self) -> None:
        """Stop the part and wait for it, up to `STOP_SECONDS`."""
        self._stop.set()
        self._thread.join(STOP_SECONDS)
        if self._thread.is_alive():
            log.error("%s did not stop within %g s", self.name, STOP_SECONDS)

    def _run(self) -> None:
        try:
            self._work(self._stop)
        except BaseException:
            log.exception("%s failed; its process ends with it", self.name)
            self._end_process()
        else:
            if not self._stop.is_set():
                log.error("%s returned before it was stopped", self.name)
                self._end_process()

    def _end_process(self) -> None:
        logging.shutdown()
        os._exit(1)


def in_event_loop(
    make: Callable[[], Coroutine[Any, Any, None]],
) -> Callable[[threading.Event], None]:
    """Return thread work that runs a coroutine until stopped, then cancels it and waits."""

    async def live(stop: threading.Event) -> None:
        work = asyncio.ensure_future(make())
        stopping = asyncio.ensure_future(asyncio.to_thread(stop.wait))
        await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stop.set()  # ends the thread that waits for it
        if not work.done():
            work.cancel()
            await asyncio.wait({work})
        if not work.cancelled():
            work.result()

    def run(stop: threading.Event) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(live(stop))

    return run
