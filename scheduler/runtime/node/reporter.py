"""Reporter of a node: collects events, sends them together, and repeats until Redis has stored them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import redis
import redis.asyncio

from domain.codec import encode, pack_fields
from domain.events import ActionFinished, ActionStarted, Event
from domain.redis_keys import Keys
from scheduler.runtime.redis.clients import keep_running
from scheduler.runtime.redis.connection import AsyncRedisConnection

log = logging.getLogger(__name__)

#: Messages in one inbox entry.
MAX_MESSAGES = 500
RETRY_SECONDS = 0.2


class Reporter:
    """Sends events to the inbox in order. The core ignores repeated reports."""

    def __init__(self, client: redis.asyncio.Redis, keys: Keys) -> None:
        self._connection = AsyncRedisConnection(client)
        self._keys = keys
        self._waiting: list[tuple[Event, Callable[[], None] | None]] = []
        self._something = asyncio.Event()

    def report(self, event: Event, sent: Callable[[], None] | None = None) -> None:
        """Queue an event; ``sent`` is called once it is on disk."""
        self._waiting.append((event, sent))
        self._something.set()

    async def run(self) -> None:
        """Send waiting events until cancelled."""
        try:
            await self._serve()
        finally:
            self._connection.close()

    async def _serve(self) -> None:
        while keep_running():
            await self._something.wait()
            self._something.clear()
            while self._waiting:
                batch = self._waiting[:MAX_MESSAGES]
                await self._send(batch)
                del self._waiting[: len(batch)]
                for _, sent in batch:
                    if sent is not None:
                        sent()

    async def _send(self, batch: list[tuple[Event, Callable[[], None] | None]]) -> None:
        messages = [encode(event) for event in _without_stale_starts([e for e, _ in batch])]
        while keep_running():
            try:
                await self._connection.call("XADD", self._keys.inbox, "*", *pack_fields(messages))
            except redis.RedisError as error:
                log.warning("reports wait, redis does not accept them: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return


def _without_stale_starts(events: list[Event]) -> list[Event]:
    """Drop starts whose end is in the same batch: they were never visible."""
    ended = {(e.action_id, e.attempt) for e in events if isinstance(e, ActionFinished)}
    return [
        e
        for e in events
        if not (isinstance(e, ActionStarted) and (e.action_id, e.attempt) in ended)
    ]
