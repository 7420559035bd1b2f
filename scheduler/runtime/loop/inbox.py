"""Inbox of the leader: reads messages in order and keeps the place up to which they are settled.

Two places differ. Messages up to the *read* place were handed to the loop; messages up to the
*settled* place are in the journal, or were queries and are answered. Snapshots, trimming and signs
of life use the settled place: a successor continues there, and would miss everything between the
two. A pass that takes fewer messages (`poison_messages`) may end within an entry; then the place
has a part of the entry behind it.

A message that cannot be read (damaged, or of another version) is set aside; the others are handled.

Queries about the whole system have a stream of their own (`Keys.questions`), read in the same command: their answers
need no place among the messages, and a hundred thousand submissions must not delay them. They see what arrived
before them, unless the inbox is longer than one read.

Redis is asked once, and answers when there is a message; meanwhile nodes of this machine may report (`local_nodes`). Their
messages have no place in the inbox: a node sends again what is not in the journal when the connection ends.
"""

from __future__ import annotations

import logging
from time import monotonic, time
from typing import NamedTuple, cast

import msgspec
import redis

from domain.codec import InboxPart, decode_command
from domain.dead_letters import INBOX, dead_letter
from domain.events import ActionSubmitted, Command, Question
from domain.redis_keys import Keys
from scheduler.runtime.local_nodes.leader_side import LocalNodes
from scheduler.runtime.loop.leadership import Leadership
from scheduler.runtime.redis.connection import (
    Entries,
    RedisConnection,
    answered_streams,
    ask_streams,
)
from scheduler.runtime.redis.journal import START, id_parts

log = logging.getLogger(__name__)

#: Inbox entries taken per pass; each may hold many messages.
BATCH_ENTRIES = 256
#: Messages asked for per pass, in about: a query waits for the pass that is under way.
BATCH_MESSAGES = 512
#: Messages taken per pass at most: entries may be larger than those before. The rest is read once more.
MOST_MESSAGES = 2 * BATCH_MESSAGES
#: Messages of an entry, as a new leader expects them.
UNKNOWN_MESSAGES = 64.0
#: After a read of so many entries at most, the next one is asked for ahead.
FEW_ENTRIES = 2
#: A new leader answers queries that are not older than this, in milliseconds: their callers still wait.
LATE_QUESTION_MS = 5000


class InboxMessage(NamedTuple):
    """A message, and its place in the inbox."""

    entry_id: str
    place: bytes
    body: bytes


class Inbox:
    """Reads the inbox for one loop; each term starts with `begin`."""

    def __init__(
        self, client: redis.Redis, keys: Keys, leadership: Leadership, nodes: LocalNodes
    ) -> None:
        self._client = client
        self._nodes = nodes
        self._connection = RedisConnection(client)
        self._stream, self._questions = keys.inbox, keys.questions
        self._leadership = leadership
        self.begin(START)

    def begin(self, after: str, part: InboxPart | None = None) -> None:
        """Continue behind ``after`` and ``part`` of the next entry: so much is settled."""
        self.close()
        self._may_ask_ahead = False
        self.read_id = self.settled_id = after
        self.read_part = self.settled_part = part
        #: Messages of the last `read`, when it was limited.
        self.handed: list[InboxMessage] = []
        #: Whether messages wait outside: they were accepted before the inbox is empty, and are read later.
        self.waits_outside = False
        #: Time of the last `read` that emptied the inbox; None before the first.
        self._drained_at: float | None = None
        #: The last entry of the queries that was read; empty before the first `read`.
        self._question_id = ""
        #: Messages of an entry, in the mean of the last `read`; what was more before counts for a while.
        self._messages_of_entry = UNKNOWN_MESSAGES

    def settle(self) -> None:
        """Record that all messages that were read are in the journal, or are answered."""
        self.settled_id, self.settled_part = self.read_id, self.read_part

    def close(self) -> None:
        """Close the connection; the next `read` opens another one."""
        #: Entries that Redis was asked for, while it has not answered.
        self._asked_for: int | None = None
        self._connection.close()

    def read(self, wait_seconds: float, limit: int | None = None) -> list[Command]:
        """Return new messages, at most ``limit`` of them, waiting for the first one; behind them, queries.

        Raises Fenced and redis.RedisError.
        """
        count, entries, questions = self._entries(wait_seconds, limit)
        received_at = time()
        behind: tuple[str, InboxPart | None] = self.read_id, self.read_part
        many = sum(len(fields) for _, fields in entries) > MOST_MESSAGES
        if limit is not None or self.read_part is not None or many:
            entries, behind = self._cut(entries, MOST_MESSAGES if limit is None else limit)
        elif entries:
            behind = entries[-1][0], None
        commands = self._reported()
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
        self._may_ask_ahead = limit is None and len(entries) <= FEW_ENTRIES
        emptied = len(entries) < count and behind[1] is None and not self.waits_outside
        if limit is None and emptied:
            self._drained_at = monotonic()
        return commands + self._asked(questions)

    def ask_ahead(self) -> None:
        """Ask for messages while Redis commits: it is awake. Under load it is asked later, for more at once."""
        if self._may_ask_ahead and self._asked_for is None:
            self._ask(None)

    def _reported(self) -> list[Command]:
        """Return the reports of nodes of this machine; one that cannot be read comes again by the inbox."""
        commands: list[Command] = []
        for message in self._nodes.reports():
            try:
                commands.append(decode_command(message))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                log.error("a report of a node of this machine cannot be read: %s", error)
                self._nodes.close()
                break
        return commands

    def _entries(self, wait_seconds: float, limit: int | None) -> tuple[int, Entries, Entries]:
        """Return the next entries of messages and of queries, as of one moment; and how many were asked for."""
        count = self._asked_for
        if count is None:
            count = self._ask(limit)
        if not self._nodes.wait(self._connection.fileno(), wait_seconds):
            return count, [], []
        self._asked_for = None
        found = answered_streams(self._connection)
        entries, questions = found.get(self._stream, []), found.get(self._questions, [])
        if entries:
            mean = sum(len(fields) for _, fields in entries) / len(entries)
            self._messages_of_entry = max(mean, self._messages_of_entry / 2)
        if questions:
            self._question_id = questions[-1][0]
        return count, entries, questions

    def _ask(self, limit: int | None) -> int:
        """Ask for entries; return for how many."""
        count = max(1, min(BATCH_ENTRIES, int(BATCH_MESSAGES / self._messages_of_entry)))
        if limit is not None:
            count = min(limit, count)
        if not self._question_id:
            self._question_id = self._first_question()
        after = {self._stream: self.read_id, self._questions: self._question_id}
        ask_streams(self._connection, after, count)
        self._asked_for = count
        return count

    def _first_question(self) -> str:
        """Return the id behind which callers may still wait for their answers."""
        newest = cast(
            "list[tuple[bytes, object]]", self._client.xrevrange(self._questions, count=1)
        )
        if not newest:
            return START
        return f"{max(0, id_parts(newest[0][0].decode())[0] - LATE_QUESTION_MS)}-0"

    def _asked(self, entries: Entries) -> list[Command]:
        """Return the queries of ``entries``; anything else is left out, and logged."""
        asked: list[Command] = []
        for _, fields in entries:
            for message in fields.values():
                try:
                    command: Command = decode_command(message)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                    log.error("a query cannot be read and is left out: %s", error)
                    continue
                if isinstance(command, Question):
                    asked.append(command)
                else:
                    log.error("%s is not a query and is left out", type(command).__name__)
        return asked

    def _cut(self, entries: Entries, limit: int) -> tuple[Entries, tuple[str, InboxPart | None]]:
        """Return the messages of ``entries`` within ``limit``, and the place behind them."""
        self.handed = []
        taken: Entries = []
        before, part = self.read_id, self.read_part
        for stream_id, fields in entries:
            seen = part.messages if part is not None and part.entry_id == stream_id else 0
            end = seen + limit - len(self.handed)
            messages = list(fields.items())[seen:end]
            taken.append((stream_id, dict(messages)))
            self.handed += [InboxMessage(stream_id, place, body) for place, body in messages]
            if end < len(fields):
                return taken, (before, InboxPart(stream_id, end))
            before, part = stream_id, None
            if len(self.handed) >= limit:
                break
        return taken, (before, part)

    def _longest_lag(self) -> float | None:
        """Return an upper bound of the time that a message has waited, independent of wall clocks."""
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
