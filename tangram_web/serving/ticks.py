"""Ticks of the web process: its periodic duties fall due together, so that an idle process wakes rarely.

A wake-up of an idle process costs 0.1 to 0.2 ms of CPU whatever it does then. uvicorn looks ten times a second whether
it was asked to end, and every tenth time renews the ``Date`` header. Here the signal itself ends the wait, and the
header is renewed once a second, in the tick of the other duties.
"""

from __future__ import annotations

import asyncio
from types import FrameType

from uvicorn.server import Server

from scheduler.runtime.liveness import next_tick

_HEADER_SECONDS = 1.0


def wait_for_signals() -> None:
    """Make servers of this process wait for a signal instead of looking for one; idempotent."""
    Server.main_loop = _main_loop  # type: ignore[method-assign, assignment]
    Server.handle_exit = _handle_exit  # type: ignore[method-assign, assignment]


_uvicorn_handle_exit = Server.handle_exit
_asked: asyncio.Event | None = None
_loop: asyncio.AbstractEventLoop | None = None


async def _main_loop(server: Server) -> None:
    global _asked, _loop
    _asked, _loop = asyncio.Event(), asyncio.get_running_loop()
    while not await server.on_tick(0):
        try:
            async with asyncio.timeout(next_tick(_HEADER_SECONDS)):
                await _asked.wait()
        except TimeoutError:
            pass


def _handle_exit(server: Server, sig: int, frame: FrameType | None) -> None:
    _uvicorn_handle_exit(server, sig, frame)
    if _asked is not None and _loop is not None:
        _loop.call_soon_threadsafe(_asked.set)
