"""Passages: answers that reach the client while they are still being given.

A call with ``stream`` is executed on a node and read at a web process, so its pieces cross Redis, in
a stream of their own. What finishes the action goes the ordinary way (report, journal, row); a
passage is a convenience beside it, and may break without harm to the action.

Rules
1. At most `MOST_ENTRIES` pieces of at most `PIECE_BYTES` lie in Redis. A writer waits for room, so a
   slow reader slows the API and nothing piles up. The reader deletes what it has sent.
2. A writer whose reader takes nothing for `STALLED_SECONDS`, or that meets an error of Redis, gives
   the passage up; the call itself goes on.
3. One reader reads a passage, once. Its claim lasts as long as it shows life; a reader that comes
   back later, when another one has begun, takes and deletes nothing any more.
4. Only answers with a status of 2xx are passed on: others may be tried again. One that breaks off
   after its beginning ends the reader's connection without the end of its body.
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
from scheduler.runtime.redis.connection import AsyncLane, read_stream_async

log = logging.getLogger(__name__)

PIECE_BYTES: Final = 64 * 1024
MOST_ENTRIES: Final = 16
KEEP_SECONDS: Final = 60
STALLED_SECONDS: Final = 30.0
ROOM_POLL_SECONDS: Final = 0.02
BLOCK_SECONDS: Final = 0.25
_BEGIN, _PIECE, _END = b"b", b"p", b"e"


#: How long a reader may take for what it read last.
CLAIM_SECONDS: Final = 15
#: KEYS claim · ARGV reader, seconds. A claim that nobody has by now is taken again.
_STILL_OURS: Final = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
return 1
"""
#: KEYS claim, passage · ARGV reader.
_DELETE_IF_OURS: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1], KEYS[2])
"""


class Beginning(msgspec.Struct, array_like=True, frozen=True):
    """Status and headers of an answer, as the API gave them."""

    status: int
    headers: dict[str, str]


_beginning = msgspec.msgpack.Decoder(Beginning)


class RedisPassages:
    """The node's side: opens a passage for each call that is to be passed on."""

    def __init__(self, client: redis.asyncio.Redis, keys: Keys) -> None:
        self._lane = AsyncLane(client)
        self._keys = keys

    def open(self, action_id: ActionId) -> RedisPassage:
        """Return the way to whoever reads this action's answer."""
        return RedisPassage(self._lane, self._keys.passage(action_id))

    def close(self) -> None:
        """Give up the connection; what is under way ends where it is."""
        self._lane.close()


class RedisPassage:
    """One answer on its way. Its methods raise nothing but cancellation."""

    def __init__(self, lane: AsyncLane, key: str) -> None:
        self._lane = lane
        self._key = key
        self._broken = False

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Tell how the answer begins."""
        beginning = msgspec.msgpack.encode(Beginning(status, dict(headers)))
        await self._attempt(_BEGIN, beginning, fresh=True)

    async def write(self, data: bytes) -> None:
        """Pass on what came, when there is room."""
        for start in range(0, len(data), PIECE_BYTES):
            if not self._broken:
                await self._attempt(_PIECE, data[start : start + PIECE_BYTES])

    async def end(self) -> None:
        """Tell that the answer is whole."""
        if not self._broken:
            await self._attempt(_END, b"")

    async def _attempt(self, kind: bytes, data: bytes, *, fresh: bool = False) -> None:
        try:
            if fresh:
                await self._lane.call("DEL", self._key)
            elif not await self._has_room():
                self._give_up("its reader takes nothing")
                await self._lane.call("DEL", self._key)
                return
            await self._lane.call("XADD", self._key, "*", "k", kind, "d", data)
            await self._lane.call("EXPIRE", self._key, KEEP_SECONDS)
        except redis.RedisError as error:
            self._give_up(str(error))

    async def _has_room(self) -> bool:
        waited, before = 0.0, MOST_ENTRIES + 1
        while (length := int(await self._lane.call("XLEN", self._key))) >= MOST_ENTRIES:
            if length < before:
                waited, before = 0.0, length
            if waited > STALLED_SECONDS:
                return False
            await asyncio.sleep(ROOM_POLL_SECONDS)
            waited += ROOM_POLL_SECONDS
        return True

    def _give_up(self, why: str) -> None:
        self._broken = True
        log.warning("an answer is not passed on any further (%s): %s", self._key, why)


def _being_read() -> Conflict:
    return Conflict("this answer is being read by another request", code="being_read")


class PassageReader:
    """The web's side of one passage. `close` it."""

    def __init__(self, client: redis.asyncio.Redis, keys: Keys, action_id: str) -> None:
        self._lane = AsyncLane(client)
        self._key = keys.passage(action_id)
        self._claim_key = f"{self._key}:reader"
        self._name = secrets.token_hex(8)
        self._after = "0-0"
        self._claimed = False
        #: The answer came to its end here.
        self.whole = False

    async def claim(self) -> None:
        """Become the one reader. Raises Conflict when there is one, and redis.RedisError."""
        claimed: Any = await self._lane.call(
            "SET", self._claim_key, self._name, "NX", "EX", CLAIM_SECONDS
        )
        if claimed is None:
            raise _being_read()
        self._claimed = True

    async def read(self) -> AsyncGenerator[Beginning | bytes, None]:
        """Yield what has come; ends when nothing more came for a moment, or at the answer's end.

        What was yielded before is deleted when the next one is asked for. Raises Conflict when the
        claim is another's by now, and redis.RedisError.
        """
        ours: Any = await self._lane.call(
            "EVAL", _STILL_OURS, 1, self._claim_key, self._name, CLAIM_SECONDS
        )
        if not ours:
            raise _being_read()
        entries = await read_stream_async(self._lane, self._key, self._after, 8, BLOCK_SECONDS)
        for entry_id, fields in entries:
            self._after = entry_id
            kind, data = fields[b"k"], fields[b"d"]
            if kind == _END:
                self.whole = True
                return
            yield _beginning.decode(data) if kind == _BEGIN else data
            await self._lane.call("XDEL", self._key, entry_id)

    async def close(self) -> None:
        """Give up the claim and the connection."""
        try:
            if self._claimed:
                # An answer that was read, or broke off, is of no use to anybody else.
                await self._lane.call(
                    "EVAL", _DELETE_IF_OURS, 2, self._claim_key, self._key, self._name
                )
        except redis.RedisError:
            log.info("%s expires by itself", self._key)
        finally:
            self._lane.close()
