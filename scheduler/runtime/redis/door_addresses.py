"""Addresses of doors: node worker, or rollout worker → where web processes reach it directly, and with which secret.

A node worker stores its entry when it starts and with every sign of life, and removes it when it ends. The
secret is made at each start, so an entry of a dead worker opens nothing. Entries are never journalled.
"""

from __future__ import annotations

import logging
from typing import Final, cast

import msgspec
import redis.asyncio

from domain.redis_keys import Keys

log = logging.getLogger(__name__)

#: In front of the path of a socket; any other address is ``host:port``.
UNIX: Final = "unix:"


class DoorAddress(msgspec.Struct, frozen=True):
    """Where one start of a node worker serves its door."""

    #: ``unix:/path`` or ``host:port``.
    address: str
    #: Bearer secret of this start.
    secret: str
    incarnation: int
    #: Name of the machine, for error messages.
    hostname: str = ""

    @property
    def socket_path(self) -> str | None:
        """Path of the unix socket; None where the door has a port."""
        return self.address.removeprefix(UNIX) if self.address.startswith(UNIX) else None


_decoder = msgspec.json.Decoder(DoorAddress)


class DoorAddresses:
    """The stored addresses. All methods raise redis.RedisError when Redis does not answer."""

    def __init__(self, client: redis.asyncio.Redis, keys: Keys, *, rollouts: bool = False) -> None:
        """``rollouts``: those of rollout workers, else of nodes."""
        self._client = client
        self._key = keys.rollout_doors if rollouts else keys.node_doors

    async def publish(self, node: str, address: DoorAddress) -> None:
        """Store the address of ``node``."""
        await self._client.hset(self._key, node, msgspec.json.encode(address).decode())

    async def withdraw(self, node: str, address: DoorAddress) -> None:
        """Remove the address of ``node``, unless a later start of its worker has stored its own."""
        if await self.read(node) == address:
            await self._client.hdel(self._key, node)

    async def nodes(self) -> list[str]:
        """Return the nodes whose workers have stored an address, in order; a dead worker's may be among them."""
        names = cast("list[bytes]", await self._client.hkeys(self._key))
        return sorted(name.decode() for name in names)

    async def read(self, node: str) -> DoorAddress | None:
        """Return the address of ``node``; None when its worker has stored none."""
        stored = cast("bytes | None", await self._client.hget(self._key, node))
        if stored is None:
            return None
        try:
            return _decoder.decode(stored)
        except msgspec.DecodeError as error:  # of a worker of another version
            log.error("the address of node %s cannot be read: %s", node, error)
            return None
