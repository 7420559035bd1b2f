"""Connections to Redis on the path of an action.

An action crosses Redis eight times. redis-py spends 100 to 150 µs around each command of an asyncio
client (pool, retries, hooks), several times the cost of the command itself. These connections are
opened by redis-py (which handles address, TLS and login); packed commands are written to them, and
replies, parsed by hiredis, arrive in the same order. `docs/decisions/0004` has the figures.

Rules
1. A blocking command delays all later ones on its connection, so readers have connections of their own.
2. No command is sent twice. A broken connection fails every pending command with a ConnectionError:
   whether they were executed is unknown. The next command opens another connection.
3. Replies have the shapes of RESP2; an error reply is raised as redis-py's class for it.
4. One task or thread opens a connection; an `AsyncRedisConnection` belongs to the event loop that
   used it first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, cast

import hiredis
import redis
import redis.asyncio
from redis.commands.core import Script

from domain.confirmation import Confirmation
from scheduler.runtime.redis.confirmation import check_confirmed

#: Longest blocking read; the time limit of replies leaves room for it.
MAX_BLOCK_SECONDS = 5.0
#: Time limit of a reply: after it the connection is closed.
PATIENCE_SECONDS = MAX_BLOCK_SECONDS + 10.0

Argument = bytes | str | int | float
#: Its stub types commands of one word only.
_pack: Callable[[tuple[Argument, ...]], bytes] = cast("Any", hiredis.pack_command)


class RedisConnection:
    """A blocking connection, for one thread."""

    def __init__(self, client: redis.Redis) -> None:
        self._pool = client.connection_pool
        self._connection: Any = None

    def call(self, *command: Argument) -> Any:
        """Send one command and return its reply. Raises a RedisError."""
        self.send(*command)
        return self.receive()

    def send(self, *command: Argument) -> None:
        """Send one command; its reply is to be received before another one is sent. Raises a RedisError."""
        connection = self._connection
        if connection is None:
            connection = self._connection = self._pool.get_connection()
        try:
            connection.send_command(*command)
        except BaseException:
            self.close()
            raise

    def receive(self) -> Any:
        """Return the reply to what was sent. Raises a RedisError."""
        try:
            return self._connection.read_response()
        except redis.ResponseError:
            raise
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        """Return the descriptor that is readable when the reply to what was sent arrives."""
        number: int = self._connection._sock.fileno()
        return number

    def run(
        self,
        script: Script,
        keys: list[str],
        args: list[Argument],
        meanwhile: Callable[[], None] | None = None,
    ) -> Any:
        """Run a registered script; ``meanwhile`` is called while Redis is at it."""
        self.send("EVALSHA", script.sha, len(keys), *keys, *args)
        if meanwhile is not None:
            meanwhile()
        try:
            return self.receive()
        except redis.exceptions.NoScriptError:
            return self.call("EVAL", cast("str", script.script), len(keys), *keys, *args)

    def confirm(self, wanted: Confirmation) -> None:
        """Wait until replicas have what was written before. Raises NotConfirmed and other RedisErrors."""
        if not wanted.replicas:
            return
        if self._connection is None:
            raise redis.ConnectionError("the connection ended before replicas confirmed")
        check_confirmed(wanted, int(self.call(*wanted.command)))

    def close(self) -> None:
        """Close the connection; the next command opens another one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()
            self._pool.release(connection)


class AsyncRedisConnection:
    """A connection for tasks of one event loop; many commands may be pending."""

    def __init__(
        self, client: redis.asyncio.Redis, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        self._pool: Any = client.connection_pool
        self._patience_seconds = patience_seconds
        self._wire: _Wire | None = None
        self._opening = asyncio.Lock()

    async def call(self, *command: Argument) -> Any:
        """Send one command and return its reply. Raises a RedisError."""
        wire = self._wire
        if wire is None or wire.broken:
            wire = await self._open()
        return await wire.send(command)

    async def run(self, script: Any, keys: list[str], args: list[Argument]) -> Any:
        """Run a registered script."""
        try:
            return await self.call("EVALSHA", script.sha, len(keys), *keys, *args)
        except redis.exceptions.NoScriptError:
            return await self.call("EVAL", script.script, len(keys), *keys, *args)

    async def confirm(self, wanted: Confirmation, barrier: str = "") -> None:
        """Wait until replicas have what the last command wrote, for a connection with one user.

        ``barrier``: a key to write before, where that command may have written nothing: a confirmation needs a write.
        Raises NotConfirmed and other RedisErrors.
        """
        if not wanted.replicas:
            return
        wire = self._wire
        if wire is None or wire.broken:
            raise redis.ConnectionError("the connection ended before replicas confirmed")
        if barrier:
            await wire.send(("SET", barrier, 1))
        check_confirmed(wanted, int(await wire.send(wanted.command)))

    def close(self) -> None:
        """Close the connection; the next command opens another one."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.fail("the connection was closed")

    async def _open(self) -> _Wire:
        async with self._opening:
            if self._wire is None or self._wire.broken:
                connection = self._pool.make_connection()
                await connection.connect()
                if connection._writer.transport.is_closing():  # nothing would say so later
                    connection._close()
                    raise redis.ConnectionError("redis closed the connection while it was opened")
                self._wire = _Wire(connection, self._patience_seconds)
                if (task := asyncio.current_task()) is not None and task.cancelling():
                    raise asyncio.CancelledError  # redis-py loses a cancellation during its handshake
            return self._wire


class _Wire(asyncio.Protocol):
    """One open connection: replaces redis-py as the reader of its transport."""

    def __init__(self, connection: Any, patience_seconds: float) -> None:
        self._connection = connection
        self._patience_seconds = patience_seconds
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(
            protocolError=redis.exceptions.InvalidResponse,
            replyError=redis.connection.DefaultParser.parse_error,
        )
        #: Pending replies, oldest first, and their deadlines.
        self._pending: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._watch: asyncio.TimerHandle | None = None
        self.broken = False
        self._transport: asyncio.Transport = connection._writer.transport
        self._transport.set_protocol(self)

    def send(self, command: tuple[Argument, ...]) -> asyncio.Future[Any]:
        """Write a command; the future is its reply."""
        reply = self._loop.create_future()
        deadline = self._loop.time() + self._patience_seconds
        self._pending.append((reply, deadline))
        if self._watch is None:
            self._watch = self._loop.call_at(deadline, self._check_deadline)
        self._transport.write(_pack(command))
        return reply

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while (answer := self._reader.gets()) is not False:
                reply, _ = self._pending.popleft()
                if reply.done():
                    continue  # the caller was cancelled
                if isinstance(answer, redis.RedisError):
                    reply.set_exception(answer)
                else:
                    reply.set_result(answer)
        except (redis.RedisError, IndexError) as error:
            self.fail(f"redis sent an invalid reply: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(f"redis closed the connection: {exc}" if exc else "redis closed the connection")

    def fail(self, why: str) -> None:
        """Fail all pending commands, and close."""
        self.broken = True
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        pending, self._pending = self._pending, deque()
        for reply, _ in pending:
            if not reply.done():
                reply.set_exception(redis.ConnectionError(why))
        self._connection._close()  # drops its streams, or it would warn of them
        self._transport.abort()

    def _check_deadline(self) -> None:
        """Check the deadline of the oldest command."""
        self._watch = None
        if not self._pending:
            return
        deadline = self._pending[0][1]
        if deadline <= self._loop.time():
            self.fail(f"redis did not answer within {self._patience_seconds:g} s")
        else:
            self._watch = self._loop.call_at(deadline, self._check_deadline)


#: Entries of one stream: (id, fields).
Entries = list[tuple[str, dict[bytes, bytes]]]


def read_stream(
    connection: RedisConnection, stream: str, after: str, count: int, block_seconds: float | None
) -> Entries:
    """Return up to ``count`` entries behind ``after``, waiting up to ``block_seconds`` for the first."""
    return _entries(connection.call(*_xread(stream, after, count, block_seconds)))


def read_from(connection: RedisConnection, stream: str, first: str, count: int) -> Entries:
    """Return up to ``count`` entries from ``first`` on, that one included, as of one moment."""
    return _entries([(stream, connection.call("XRANGE", stream, first, "+", "COUNT", count))])


def ask_streams(connection: RedisConnection, after: Mapping[str, str], count: int) -> None:
    """Ask for up to ``count`` entries of each stream behind its id in ``after``, as of one moment.

    The reply comes when there is an entry, at the latest after `MAX_BLOCK_SECONDS`.
    """
    wait = int(MAX_BLOCK_SECONDS * 1000)
    ask = ("XREAD", "BLOCK", wait, "COUNT", count, "STREAMS")
    connection.send(*ask, *after, *after.values())


def answered_streams(connection: RedisConnection) -> dict[str, Entries]:
    """Return the entries that `ask_streams` asked for."""
    answer: list[Any] = connection.receive() or []
    return {stream.decode(): _entries([(stream, found)]) for stream, found in answer}


async def read_stream_async(
    connection: AsyncRedisConnection,
    stream: str,
    after: str,
    count: int,
    block_seconds: float | None,
) -> Entries:
    """Do what `read_stream` does, without blocking the event loop."""
    return _entries(await connection.call(*_xread(stream, after, count, block_seconds)))


def _xread(
    stream: str, after: str, count: int, block_seconds: float | None
) -> tuple[Argument, ...]:
    if block_seconds is None:
        return ("XREAD", "COUNT", count, "STREAMS", stream, after)
    milliseconds = max(1, int(min(block_seconds, MAX_BLOCK_SECONDS) * 1000))
    return ("XREAD", "BLOCK", milliseconds, "COUNT", count, "STREAMS", stream, after)


def _entries(answer: list[Any] | None) -> Entries:
    if not answer:
        return []
    return [
        (stream_id.decode(), dict(zip(fields[::2], fields[1::2], strict=True)))
        for stream_id, fields in answer[0][1]
    ]
