"""Lease of a keeper (of fleets, of node groups), and the writes that need it: refused once another process has the lease.

The lease expires without renewal, so a process that ends or stands still is replaced. Every write is a script that
compares the holder first: a keeper that continues after another one has taken over raises `Fenced` with its first write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import redis
import redis.asyncio

from domain.codec import encode, pack_fields
from domain.errors import Fenced
from domain.events import Event
from domain.redis_keys import Keys
from scheduler.runtime.redis.connection import Argument, AsyncRedisConnection
from scheduler.runtime.redis.lua_scripts import (
    KEEP,
    KEEPER_APPEND,
    KEEPER_FORGET,
    KEEPER_PUT,
    RESIGN,
)

#: A keeper that renewed for so long nothing is replaced.
LEASE_SECONDS: Final = 10.0
#: Events of one append; the stack of Lua bounds it.
_MOST_EVENTS: Final = 500


class KeeperLease:
    """The right to keep the fleets, or what else ``key`` is of. All writes raise Fenced without it, and RedisError."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        keys: Keys,
        name: str,
        lease_seconds: float = LEASE_SECONDS,
        key: str = "",
        kept: str = "the fleets",
    ) -> None:
        self._key, self._kept = key or keys.fleet_keeper, kept
        self.name, self.lease_seconds = name, lease_seconds
        self._keys = keys
        self._connection = AsyncRedisConnection(client)
        self._keep = client.register_script(KEEP)
        self._append = client.register_script(KEEPER_APPEND)
        self._put = client.register_script(KEEPER_PUT)
        self._forget = client.register_script(KEEPER_FORGET)
        self._resign = client.register_script(RESIGN)

    async def take(self) -> bool:
        """Take the lease, or renew it; False: another process has it."""
        milliseconds = int(self.lease_seconds * 1000)
        args: list[Argument] = [self.name, milliseconds]
        return bool(await self._connection.run(self._keep, [self._key], args))

    async def append(self, events: Sequence[Event]) -> None:
        """Append events to the inbox, on disk when this returns."""
        for at in range(0, len(events), _MOST_EVENTS):
            fields = pack_fields(map(encode, events[at : at + _MOST_EVENTS]))
            await self._fenced(self._append, self._keys.inbox, fields)

    async def put(self, hash_key: str, field: str, value: bytes) -> None:
        """Set a field of a hash."""
        await self._fenced(self._put, hash_key, [field, value])

    async def forget(self, hash_key: str, field: str) -> None:
        """Delete a field of a hash."""
        await self._fenced(self._forget, hash_key, [field])

    async def fields(self, hash_key: str) -> set[str]:
        """Return the fields of a hash."""
        found: list[bytes] = await self._connection.call("HKEYS", hash_key)
        return {each.decode() for each in found}

    async def values(self, hash_key: str) -> dict[str, bytes]:
        """Return the fields of a hash with their values."""
        found: list[bytes] = await self._connection.call("HGETALL", hash_key)
        return {name.decode(): value for name, value in zip(found[::2], found[1::2], strict=True)}

    async def give_back(self) -> None:
        """Let another process take over at once."""
        await self._connection.run(self._resign, [self._key], [self.name])

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    async def _fenced(self, script: Any, key: str, args: Sequence[Argument]) -> None:
        try:
            await self._connection.run(script, [self._key, key], [self.name, *args])
        except redis.ResponseError as error:
            if "FENCED" in str(error):
                raise Fenced(f"another process keeps {self._kept}") from error
            raise
