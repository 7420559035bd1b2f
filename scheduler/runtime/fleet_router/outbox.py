"""Outbox: messages to the scheduler that are never given up, in their order.

The request that causes a report does not wait for it: a report is appended with all others that came meanwhile, and again while
Redis does not answer. A process that ends with messages in it loses them; then its generations end as ``unknown``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from domain.errors import CapacityError
from domain.event_base import EventBase

log = logging.getLogger(__name__)

#: Appends messages to the inbox. Raises CapacityError, Unavailable.
Append = Callable[[Sequence[bytes]], Awaitable[object]]
RETRY_SECONDS: Final = 0.2
#: Messages of one append.
MOST_MESSAGES: Final = 500


class Outbox:
    """Messages that wait to be appended."""

    def __init__(self, append: Append, encode: Callable[[EventBase], bytes]) -> None:
        self._append = append
        self._encode = encode
        self._waiting: list[bytes] = []
        self._something = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, *events: EventBase) -> None:
        """Send events after those that wait."""
        self._waiting += map(self._encode, events)
        self._empty.clear()
        self._something.set()

    async def flush(self, seconds: float) -> None:
        """Wait until all are appended, at most for so long."""
        try:
            async with asyncio.timeout(seconds):
                await self._empty.wait()
        except TimeoutError:
            log.warning("%d reports of generations are not sent yet", len(self._waiting))

    async def run(self) -> None:
        """Append until cancelled."""
        while True:
            await self._something.wait()
            self._something.clear()
            while self._waiting:
                batch = self._waiting[:MOST_MESSAGES]
                try:
                    await self._append(batch)
                except CapacityError as error:
                    log.warning("reports of generations wait: %s", error)
                    await asyncio.sleep(RETRY_SECONDS)
                else:
                    del self._waiting[: len(batch)]
            self._empty.set()
