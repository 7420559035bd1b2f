"""Confirmation of writes by replicas of Redis: what is answered, shown or forgotten survives the loss of the master.

A replica has a prefix of what its master wrote, in the same order, and a script is replicated whole. So once a replica confirms one
write, it has all before it: no hole, and one confirmation for everything that one command wrote for many.

Rules
1. A confirmation counts for what was written on the same connection: after a new connection it could be another server.
2. A write that is not confirmed in time may be there all the same. Its writer treats it as not known, and asks or writes again.
3. Without replicas that must confirm, nothing is sent: the writes cost what they cost before.
4. A command that may write nothing, since another process wrote it, is followed by a write of its own (`Keys.barrier`): so the
   reply about the other's write waits for replicas, too.
"""

from __future__ import annotations

from typing import Any

import redis
import redis.asyncio

from domain.confirmation import NONE_NEEDED, Confirmation, why_not_done
from domain.errors import Unavailable
from domain.redis_keys import Keys

Word = bytes | str | int | float


class NotConfirmed(redis.RedisError):
    """Too few replicas have confirmed a write: a master that dies now may lose it."""


def check_confirmed(wanted: Confirmation, confirmed: int) -> None:
    """Raise NotConfirmed when fewer replicas than wanted have confirmed."""
    if lacking := wanted.lacking(confirmed):
        raise NotConfirmed(lacking)


def reason_of(error: redis.RedisError) -> str:
    """Return why Redis did not do what was asked, for those who sent the request."""
    return str(error) if isinstance(error, NotConfirmed) else why_not_done(error)


def unavailable(error: redis.RedisError) -> Unavailable:
    """Return the answer to a request that Redis did not take."""
    return Unavailable(reason_of(error))


class ConfirmedCalls:
    """Rare commands whose replies count once replicas have what they wrote; many tasks share the connections of one client."""

    def __init__(
        self, client: redis.asyncio.Redis, keys: Keys, wanted: Confirmation = NONE_NEEDED
    ) -> None:
        self._client: Any = client
        self._barrier = keys.barrier
        self._wanted = wanted

    async def call(self, *command: Word) -> Any:
        """Send a command and return its reply. Raises NotConfirmed and other RedisErrors."""
        if not self._wanted.replicas:
            return await self._client.execute_command(*command)
        return (await self._confirmed([command]))[0]

    async def call_all(self, *commands: tuple[Word, ...]) -> None:
        """Send commands that Redis does all together, or not at all. Raises as `call` does."""
        await self._confirmed([("MULTI",), *commands, ("EXEC",)])

    async def _confirmed(self, commands: list[tuple[Word, ...]]) -> list[Any]:
        """Send commands and the wait for replicas on one connection; return the replies."""
        async with self._client.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            if self._wanted.replicas:
                pipeline.execute_command("SET", self._barrier, 1)
                pipeline.execute_command(*self._wanted.command)
            replies: list[Any] = await pipeline.execute(raise_on_error=False)
        for reply in replies:
            for each in reply if isinstance(reply, list) else [reply]:
                if isinstance(each, Exception):  # as Redis sent it, without the command
                    raise each
        if self._wanted.replicas:
            check_confirmed(self._wanted, int(replies[-1]))
        return replies
