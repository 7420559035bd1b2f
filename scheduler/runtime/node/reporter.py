"""Reporter of a node: collects events, sends them together, and repeats until they are on disk.

They go to the inbox, to a stream of the node alone (where it has a Redis user of its own), or over a connection to the leader of this machine (`local_nodes`). When that ends, what it has not
confirmed goes to the stream, before anything later.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import redis
import redis.asyncio

from domain.codec import encode, pack_fields
from domain.confirmation import NONE_NEEDED, Confirmation
from domain.events import ActionFinished, ActionStarted, Event
from domain.redis_keys import Keys
from scheduler.runtime.local_nodes.node_side import LeaderConnection
from scheduler.runtime.redis.clients import keep_running
from scheduler.runtime.redis.confirmation import NotConfirmed
from scheduler.runtime.redis.connection import AsyncRedisConnection

log = logging.getLogger(__name__)

#: Messages in one inbox entry.
MAX_MESSAGES = 500
RETRY_SECONDS = 0.2
#: A node with a stream of its own says so again after this time: Redis may have lost its data.
NAMED_SECONDS = 10.0


class _UnsentReport(NamedTuple):
    event: Event
    sent: Callable[[], None] | None


class Reporter:
    """Sends events in order. The core ignores repeated reports."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        keys: Keys,
        leader_socket: Path | None = None,
        own_stream_of: str = "",
        confirmation: Confirmation = NONE_NEEDED,
    ) -> None:
        """``own_stream_of``: name of a node that may write its own stream of reports, and not the inbox."""
        self._connection = AsyncRedisConnection(client)
        self._confirmation = confirmation
        self._keys = keys
        self._own = own_stream_of
        self._target = keys.reports(self._own) if self._own else keys.inbox
        self._named_at = float("-inf")
        self._waiting: list[_UnsentReport] = []
        self._something = asyncio.Event()
        # The leader of this machine would open the connection when the inbox is settled, not the node's own stream.
        socket = None if self._own else leader_socket
        self.leader = LeaderConnection(socket, self._something.set)
        #: Reports that the leader was sent, and has not confirmed; they count those of one connection.
        self._unconfirmed: deque[_UnsentReport] = deque()
        #: The last entry of the inbox that this reporter wrote.
        self._inbox_id = "0-0"
        #: Stream of this node's commands, by which the leader knows it; empty until the node joins.
        self.stream = ""

    def report(self, event: Event, sent: Callable[[], None] | None = None) -> None:
        """Queue an event; ``sent`` is called once it is on disk, and where replicas must confirm, they have it."""
        self._waiting.append(_UnsentReport(event, sent))
        self._something.set()

    async def run(self) -> None:
        """Send waiting events until cancelled."""
        try:
            await self._serve()
        finally:
            self.leader.close("the node ends")
            self._connection.close()

    async def _serve(self) -> None:
        while keep_running():
            await self._something.wait()
            self._something.clear()
            self._settle()
            while self._waiting or (self._unconfirmed and not self.leader.is_open):
                if self.leader.is_open:
                    if not self.leader.may_send:
                        break  # until it confirms, or the connection ends
                    self._send_to_leader()
                elif not await self._opened():
                    self._waiting[:0] = self._unconfirmed
                    self._unconfirmed.clear()
                    await self._send_to_inbox()
            if self.leader.is_connected:
                await self._opened()

    async def _opened(self) -> bool:
        """Let a leader that has connected take reports from now on; return whether it does."""
        if self.stream and not self._unconfirmed:
            return await self.leader.opened(self.stream, self._inbox_id)
        return False

    def _settle(self) -> None:
        """Settle what the leader has confirmed."""
        while len(self._unconfirmed) > self.leader.unconfirmed and self.leader.is_open:
            report = self._unconfirmed.popleft()
            if report.sent is not None:
                report.sent()

    def _send_to_leader(self) -> None:
        batch, self._waiting = self._waiting[:MAX_MESSAGES], self._waiting[MAX_MESSAGES:]
        stale = _stale_starts(batch)
        kept = [each for each in batch if id(each) not in stale]
        self.leader.report([encode(each.event) for each in kept])
        self._unconfirmed += kept

    async def _send_to_inbox(self) -> None:
        batch = self._waiting[:MAX_MESSAGES]
        stale = _stale_starts(batch)
        messages = [encode(each.event) for each in batch if id(each) not in stale]
        self._inbox_id = await self._append(messages)
        del self._waiting[: len(batch)]
        for report in batch:
            if report.sent is not None:
                report.sent()

    async def _append(self, messages: list[bytes]) -> str:
        while keep_running():
            try:
                await self._name_stream()
                written: bytes = await self._connection.call(
                    "XADD", self._target, "*", *pack_fields(messages)
                )
                await self._confirmed()
            except redis.RedisError as error:
                log.warning("reports wait, redis does not accept them: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return written.decode()
        raise asyncio.CancelledError

    async def _confirmed(self) -> None:
        """Wait until replicas have what was written. Raises redis.RedisError when the connection ends: then it is written again."""
        while keep_running():
            try:
                await self._connection.confirm(self._confirmation)
            except NotConfirmed as error:
                log.warning("reports wait: %s", error)
            else:
                return

    async def _name_stream(self) -> None:
        """Name this node among those whose streams the leader reads."""
        if self._own and monotonic() - self._named_at >= NAMED_SECONDS:
            await self._connection.call("SADD", self._keys.reporting_nodes, self._own)
            self._named_at = monotonic()


def _stale_starts(batch: list[_UnsentReport]) -> set[int]:
    """Return the starts (by `id`) whose end is in the same batch: they were never visible."""
    ended = {
        (r.event.action_id, r.event.attempt) for r in batch if isinstance(r.event, ActionFinished)
    }
    return {
        id(r)
        for r in batch
        if isinstance(r.event, ActionStarted) and (r.event.action_id, r.event.attempt) in ended
    }
