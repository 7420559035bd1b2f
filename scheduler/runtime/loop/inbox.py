"""The leader's end of the inbox: what to decide on next, and up to where it is done with.

Two places must not be mixed up. Up to the *read* place messages were handed out; up to the *settled*
place they are in the journal, or were questions and are answered. Snapshots, trimming and signs of
life go by the settled one: whoever takes over reads on from there, and would miss everything between
the two. A pass that takes less than what came (`care`) may end within an entry: a place says so by a
part of the entry behind it.

A message that cannot be read (damaged, or of another version) is set aside, and the others go on.
"""

from __future__ import annotations

import logging
from time import monotonic, time
from typing import NamedTuple

import msgspec
import redis

from domain.codec import InboxPart, decode_command
from domain.dead_letters import INBOX, dead_letter
from domain.events import ActionSubmitted, Command
from domain.redis_keys import Keys
from scheduler.runtime.loop.leadership import Leadership
from scheduler.runtime.redis.connection import Entries, Lane, read_stream
from scheduler.runtime.redis.journal import START

log = logging.getLogger(__name__)

#: Inbox entries taken per pass; each may hold many messages.
BATCH_ENTRIES = 256


class Handed(NamedTuple):
    """A message as it lay there."""

    entry_id: str
    place: bytes
    body: bytes


class Inbox:
    """Reads the inbox for one loop; `begin` anew with each term."""

    def __init__(self, client: redis.Redis, keys: Keys, leadership: Leadership) -> None:
        self._lane = Lane(client)
        self._stream = keys.inbox
        self._leadership = leadership
        self.begin(START)

    def begin(self, after: str, part: InboxPart | None = None) -> None:
        """Read on behind ``after`` and ``part`` of the next entry: so much is settled."""
        self.read_id = self.settled_id = after
        self.read_part = self.settled_part = part
        #: What was handed out last, when it was not all that came.
        self.handed: list[Handed] = []
        #: When everything that had come was read; None before.
        self._drained_at: float | None = None

    def settle(self) -> None:
        """Note that all that was handed out is in the journal, or is answered."""
        self.settled_id, self.settled_part = self.read_id, self.read_part

    def close(self) -> None:
        """Give the connection up; the next reading opens another one."""
        self._lane.close()

    def read(self, wait_seconds: float, limit: int | None = None) -> list[Command]:
        """Return what came, waiting for the first of it; no more than ``limit`` messages.

        Raises Fenced and redis.RedisError.
        """
        count = BATCH_ENTRIES if limit is None else min(limit, BATCH_ENTRIES)
        entries = read_stream(self._lane, self._stream, self.read_id, count, wait_seconds)
        received_at = time()
        behind: tuple[str, InboxPart | None] = self.read_id, self.read_part
        if limit is not None or self.read_part is not None:
            entries, behind = self._cut(entries, limit)
        elif entries:
            behind = entries[-1][0], None
        commands: list[Command] = []
        longest_lag = self._longest_lag()
        for stream_id, fields in entries:
            for place, message in fields.items():
                command = self._decoded(stream_id, place, message)
                if isinstance(command, ActionSubmitted):
                    lag = max(0.0, received_at - command.accepted_at)
                    command.lag_seconds = lag if longest_lag is None else min(lag, longest_lag)
                if command is not None:
                    commands.append(command)
        self.read_id, self.read_part = behind
        if limit is None and len(entries) < BATCH_ENTRIES:
            self._drained_at = monotonic()
        return commands

    def _cut(
        self, entries: Entries, limit: int | None
    ) -> tuple[Entries, tuple[str, InboxPart | None]]:
        """Return what of ``entries`` is handed out now, and the place behind it."""
        self.handed = []
        taken: Entries = []
        before, part = self.read_id, self.read_part
        for stream_id, fields in entries:
            seen = part.messages if part is not None and part.entry_id == stream_id else 0
            end = len(fields) if limit is None else seen + limit - len(self.handed)
            messages = list(fields.items())[seen:end]
            taken.append((stream_id, dict(messages)))
            self.handed += [Handed(stream_id, place, body) for place, body in messages]
            if end < len(fields):
                return taken, (before, InboxPart(stream_id, end))
            before, part = stream_id, None
            if limit is not None and len(self.handed) >= limit:
                break
        return taken, (before, part)

    def _longest_lag(self) -> float | None:
        """Bound how long a message can have waited here, whatever wall clocks say."""
        return None if self._drained_at is None else monotonic() - self._drained_at

    def _decoded(self, stream_id: str, place: bytes, message: bytes) -> Command | None:
        try:
            command: Command = decode_command(message)
            return command
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            letter = dead_letter(
                INBOX, stream_id, place.decode(errors="replace"), message, error, time()
            )
        self._leadership.set_aside(letter)
        log.error(
            "a message of the inbox cannot be read and was set aside as %s: %s",
            letter.name, letter.reason,
            extra={"kind": letter.kind, "action_id": letter.action_id},
        )  # fmt: skip
        return None
