"""The leader, as a node worker of its machine sees it: a connection that is made when there is one, and may end at any time."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from os import fspath
from pathlib import Path
from time import monotonic
from typing import Final, cast

from domain.codec import COMMANDS_FIELD
from scheduler.runtime.local_nodes.frames import (
    BrokenFrame,
    Commands,
    Confirmed,
    Frame,
    FrameReader,
    Hello,
    Opened,
    Reports,
    framed,
)
from scheduler.runtime.redis.connection import AsyncRedisConnection, Entries, read_stream_async
from scheduler.runtime.redis.journal import id_parts

log = logging.getLogger(__name__)

#: A leader that confirms nothing for so long is replaced, or hangs: then reports go to the inbox.
CONFIRM_WITHIN_SECONDS: Final = 2.0
#: A leader settles the inbox within this time; else reports go there for now.
OPEN_WITHIN_SECONDS: Final = 1.0
#: Reports that may wait for a confirmation.
MOST_UNCONFIRMED: Final = 4000

READ_ENTRIES: Final = 64
BLOCK_SECONDS: Final = 1.0


class LeaderConnection:
    """One connection after another to the leader of this machine. Without a path there is none."""

    def __init__(self, path: Path | None, changed: Callable[[], None]) -> None:
        """``changed`` is called when a connection was made, opens, confirms or ends."""
        self._path = path
        self._changed = changed
        self._wire: _LeaderWire | None = None
        #: Whether the leader takes reports.
        self.is_open = False
        self._commands: deque[Commands] = deque()
        self._arrived = asyncio.Event()
        #: Numbers of the last report that was sent, and confirmed, of this connection.
        self._sent = self._confirmed = 0
        self._oldest_sent_at = float("inf")

    @property
    def is_connected(self) -> bool:
        """Whether a leader accepted the connection."""
        return self._wire is not None

    @property
    def unconfirmed(self) -> int:
        """Reports of this connection that are not known to be in the journal."""
        return self._sent - self._confirmed

    @property
    def may_send(self) -> bool:
        """Whether the leader is not too far behind with its confirmations."""
        return self.unconfirmed < MOST_UNCONFIRMED

    async def tend(self) -> None:
        """Connect if there is a leader; leave one that confirms nothing. To be called with each heartbeat."""
        self._arrived.set()  # so that the stream is read, too
        if self._path is None:
            return
        if self._wire is None:
            with suppress(OSError):
                loop = asyncio.get_running_loop()
                await loop.create_unix_connection(partial(_LeaderWire, self), fspath(self._path))
        elif self.unconfirmed and monotonic() - self._oldest_sent_at > CONFIRM_WITHIN_SECONDS:
            self.close("it confirms nothing")

    async def opened(self, stream: str, inbox_id: str) -> bool:
        """Ask the leader to take reports from now on; return whether it does.

        ``inbox_id``: the last entry of the inbox that this node wrote. It may write none meanwhile.
        """
        if self._wire is None or self.is_open:
            return self.is_open
        self._wire.send(Hello(stream, inbox_id))
        try:
            async with asyncio.timeout(OPEN_WITHIN_SECONDS):
                await self._wire.answered.wait()
        except TimeoutError:
            self.close("it takes no reports")
        return self.is_open

    def report(self, messages: Sequence[bytes]) -> None:
        """Send encoded events to a leader that takes them."""
        if not self.unconfirmed:
            self._oldest_sent_at = monotonic()
        self._sent += len(messages)
        if self._wire is not None:
            self._wire.send(Reports(self._sent, list(messages)))

    async def next_commands(
        self, connection: AsyncRedisConnection, stream: str, after: str
    ) -> Entries:
        """Return entries of ``stream`` behind ``after``: of the leader, or of Redis. May return none.

        Raises redis.RedisError.
        """
        if not self.is_open:
            return await read_stream_async(connection, stream, after, READ_ENTRIES, BLOCK_SECONDS)
        entries = await self._sent_behind(after)
        return entries or await read_stream_async(connection, stream, after, READ_ENTRIES, None)

    async def _sent_behind(self, after: str) -> Entries:
        """Wait for entries behind ``after``; none: the stream is to be read."""
        if not self._commands:
            self._arrived.clear()
            await self._arrived.wait()
        entries: Entries = []
        while self._commands:
            frame = self._commands[0]
            if frame.before == after:
                entries.append((frame.entry_id, {COMMANDS_FIELD: frame.body}))
                after = frame.entry_id
            elif id_parts(frame.entry_id) > id_parts(after):
                break  # the stream has what is missing, and this one
            self._commands.popleft()
        return entries

    def close(self, why: str) -> None:
        """End the connection."""
        if self._wire is not None:
            log.info("the connection to the leader of this machine ends: %s", why)
            self._wire.abort()
            self.ended(self._wire)

    def made(self, wire: _LeaderWire) -> None:
        """Begin with a connection."""
        self._wire = wire
        self._sent = self._confirmed = 0
        self._changed()

    def ended(self, wire: _LeaderWire) -> None:
        """Forget a connection: what it has not confirmed goes to the inbox."""
        if wire is not self._wire:
            return
        self._wire, self.is_open = None, False
        self._commands.clear()
        wire.answered.set()
        self._arrived.set()
        self._changed()

    def received(self, frame: Frame) -> None:
        """Take a frame of the leader. Raises BrokenFrame."""
        if isinstance(frame, Commands):
            self._commands.append(frame)
            self._arrived.set()
            return
        if isinstance(frame, Confirmed):
            self._confirmed = frame.last
            self._oldest_sent_at = monotonic()
        elif isinstance(frame, Opened):
            self.is_open = True
        else:
            raise BrokenFrame(type(frame).__name__)
        self._changed()


class _LeaderWire(asyncio.Protocol):
    """One connection."""

    def __init__(self, owner: LeaderConnection) -> None:
        self._owner = owner
        self._reader = FrameReader()
        self._transport: asyncio.Transport
        #: Set once the leader has answered, or is gone.
        self.answered = asyncio.Event()

    def send(self, frame: Frame) -> None:
        """Send a frame."""
        self._transport.write(framed(frame))

    def abort(self) -> None:
        """End the connection at once."""
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._owner.made(self)

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._reader.feed(data):
                self._owner.received(frame)
                if isinstance(frame, Opened):
                    self.answered.set()
        except BrokenFrame as error:
            self._owner.close(f"it sent no frame of this version: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.ended(self)
