"""Writes of one response: its head leaves together with the first piece of its body.

The server writes head and body apart, and each write is a system call that wakes the client. A head is
held until the next write or the next turn of the event loop, so a stream's head is not delayed.
"""

from __future__ import annotations

import asyncio


class ResponseWrites:
    """What uvicorn's `RequestResponseCycle` uses of a transport."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: bytes | None = None
        self._flushing: asyncio.Handle | None = None
        self._begun = False

    def write(self, data: bytes) -> None:
        """Write a piece; the first one waits for the second."""
        if not self._begun:
            self._begun = True
            self._held = data
            self._flushing = self._loop.call_soon(self._flush)
            return
        held, self._held = self._held, None
        if held is None:
            self._transport.write(data)
            return
        if self._flushing is not None:
            self._flushing.cancel()
        self._transport.write(held + data)

    def close(self) -> None:
        """Write what is held, and close."""
        self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether the transport closes."""
        return self._transport.is_closing()

    def _flush(self) -> None:
        held, self._held = self._held, None
        if held is not None and not self._transport.is_closing():
            self._transport.write(held)
