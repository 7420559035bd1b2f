"""Response streams: the response of a call reaches the client while the service still sends it.

A call with ``stream`` is executed on a node and read at a web process, so its pieces cross Redis, in
a stream of their own. The action finishes in the ordinary way (report, journal, row); a failure of
its response stream does not harm it.

Rules
1. At most `MOST_ENTRIES` pieces of at most `PIECE_BYTES` are stored in Redis. A writer waits for room,
   so a slow reader slows the API and no data piles up. The reader deletes the pieces that it has sent.
2. A writer whose reader takes nothing for `STALLED_SECONDS`, or that meets an error of Redis, closes
   the stream; the call itself continues.
3. A stream has one reader, once. Its claim lasts while it shows life; a reader that returns after
   another one has begun takes and deletes nothing.
4. Only responses with a status of 2xx are streamed: others may be retried. One that breaks off after
   its beginning ends the reader's connection without the end of its body.
5. Everything expires `KEEP_SECONDS` after the last sign of life.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final

import msgspec
import redis
import redis.asyncio

from domain.errors import Conflict
from domain.ids import ActionId
from domain.redis_keys import Keys
from scheduler.runtime.redis.connection import AsyncRedisConnection, read_stream_async

log = logging.getLogger(__name__)

PIECE_BYTES: Final = 64 * 1024
MOST_ENTRIES: Final = 16
KEEP_SECONDS: Final = 60
STALLED_SECONDS: Final = 30.0
ROOM_POLL_SECONDS: Final = 0.02
BLOCK_SECONDS: Final = 0.25
_BEGIN, _PIECE, _END = b"b", b"p", b"e"


#: Time limit of a reader for the pieces that it read last.
CLAIM_SECONDS: Final = 15
#: KEYS claim · ARGV reader, seconds. An expired claim is taken again.
_STILL_OURS: Final = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
return 1
"""
#: KEYS claim, stream · ARGV reader.
_DELETE_IF_OURS: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1], KEYS[2])
"""


class ResponseHead(msgspec.Struct, array_like=True, frozen=True):
    """Status and headers of a response of the API."""

    status: int
    headers: dict[str, str]


_beginning = msgspec.msgpack.Decoder(ResponseHead)


class RedisResponseStreams:
    """Node side: opens a response stream for each call with ``stream``."""

    def __init__(self, client: redis.asyncio.Redis, keys: Keys) -> None:
        self._connection = AsyncRedisConnection(client)
        self._keys = keys

    def open(self, action_id: ActionId) -> RedisResponseStream:
        """Return the response stream of this action."""
        return RedisResponseStream(self._connection, self._keys.response_stream(action_id))

    def close(self) -> None:
        """Close the connection; open streams break off."""
        self._connection.close()


class RedisResponseStream:
    """One response. Its methods raise nothing but cancellation."""

    def __init__(self, connection: AsyncRedisConnection, key: str) -> None:
        self._connection = connection
        self._key = key
        self._broken = False

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Write the status and the headers."""
        beginning = msgspec.msgpack.encode(ResponseHead(status, dict(headers)))
        await self._attempt(_BEGIN, beginning, fresh=True)

    async def write(self, data: bytes) -> None:
        """Write a part of the body, waiting for room."""
        for start in range(0, len(data), PIECE_BYTES):
            if not self._broken:
                await self._attempt(_PIECE, data[start : start + PIECE_BYTES])

    async def end(self) -> None:
        """Mark the response as complete."""
        if not self._broken:
            await self._attempt(_END, b"")

    async def _attempt(self, kind: bytes, data: bytes, *, fresh: bool = False) -> None:
        try:
            if fresh:
                await self._connection.call("DEL", self._key)
            elif not await self._has_room():
                self._break_off("its reader has stopped reading")
                await self._connection.call("DEL", self._key)
                return
            await self._connection.call("XADD", self._key, "*", "k", kind, "d", data)
            await self._connection.call("EXPIRE", self._key, KEEP_SECONDS)
        except redis.RedisError as error:
            self._break_off(str(error))

    async def _has_room(self) -> bool:
        waited, before = 0.0, MOST_ENTRIES + 1
        while (length := int(await self._connection.call("XLEN", self._key))) >= MOST_ENTRIES:
            if length < before:
                waited, before = 0.0, length
            if waited > STALLED_SECONDS:
                return False
            await asyncio.sleep(ROOM_POLL_SECONDS)
            waited += ROOM_POLL_SECONDS
        return True

    def _break_off(self, why: str) -> None:
        self._broken = True
        log.warning("a response is not streamed any further (%s): %s", self._key, why)


def _being_read() -> Conflict:
    return Conflict("this response is being read by another request", code="being_read")


class ResponseStreamReader:
    """Web side of one response stream; `close` it after use."""

    def __init__(self, client: redis.asyncio.Redis, keys: Keys, action_id: str) -> None:
        self._connection = AsyncRedisConnection(client)
        self._key = keys.response_stream(action_id)
        self._claim_key = f"{self._key}:reader"
        self._name = secrets.token_hex(8)
        self._after = "0-0"
        self._claimed = False
        #: The end of the response was read.
        self.whole = False

    async def claim(self) -> None:
        """Become the one reader. Raises Conflict when there is one, and redis.RedisError."""
        claimed: Any = await self._connection.call(
            "SET", self._claim_key, self._name, "NX", "EX", CLAIM_SECONDS
        )
        if claimed is None:
            raise _being_read()
        self._claimed = True

    async def read(self) -> AsyncGenerator[ResponseHead | bytes, None]:
        """Yield new pieces; returns after a moment without any, or at the end of the response.

        A piece is deleted when the next one is requested. Raises Conflict when another reader holds
        the claim, and redis.RedisError.
        """
        ours: Any = await self._connection.call(
            "EVAL", _STILL_OURS, 1, self._claim_key, self._name, CLAIM_SECONDS
        )
        if not ours:
            raise _being_read()
        entries = await read_stream_async(
            self._connection, self._key, self._after, 8, BLOCK_SECONDS
        )
        for entry_id, fields in entries:
            self._after = entry_id
            kind, data = fields[b"k"], fields[b"d"]
            if kind == _END:
                self.whole = True
                return
            yield _beginning.decode(data) if kind == _BEGIN else data
            await self._connection.call("XDEL", self._key, entry_id)

    async def close(self) -> None:
        """Release the claim and close the connection."""
        try:
            if self._claimed:
                # A response that was read, or broke off, has no other reader.
                await self._connection.call(
                    "EVAL", _DELETE_IF_OURS, 2, self._claim_key, self._key, self._name
                )
        except redis.RedisError:
            log.info("%s expires by itself", self._key)
        finally:
            self._connection.close()
