"""Addresses of doors: node worker, or rollout worker → where web processes reach it directly, and with which secret.

A node worker stores its entry when it starts and with every sign of life, and removes it when it ends. The
secret is made at each start, so an entry of a dead worker opens nothing. Entries are never journalled. A node with a Redis user
of its own has a key of its own, which no other node can read; all others share a hash.
"""

from __future__ import annotations

import logging
from typing import Any, Final, cast

import msgspec
import redis.asyncio
from msgspec.structs import replace

from contract.door_address import DoorAddress
from domain.redis_keys import Keys

log = logging.getLogger(__name__)

#: A key of a node expires after this time; it is stored again several times before.
KEEP_SECONDS: Final = 60
_decoder = msgspec.json.Decoder(DoorAddress)


class DoorAddresses:
    """The stored addresses. All methods raise redis.RedisError when Redis does not answer."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        keys: Keys,
        *,
        rollouts: bool = False,
        own_key: bool = False,
    ) -> None:
        """``rollouts``: those of rollout workers, else of nodes. ``own_key``: store in a key of the node."""
        self._client = client
        self._keys, self._rollouts, self._own_key = keys, rollouts, own_key
        self._key = keys.rollout_doors if rollouts else keys.node_doors

    async def publish(self, node: str, address: DoorAddress) -> None:
        """Store the address of ``node``."""
        if self._own_key:
            shared = replace(address, secret=address.snapshot_secret)
            async with self._client.pipeline(transaction=False) as pipeline:
                for key, each in (
                    (self._keys.node_door(node), address),
                    (self._keys.snapshot_door(node), shared),
                ):
                    pipeline.set(key, msgspec.json.encode(each), ex=KEEP_SECONDS)
                await pipeline.execute()
            return
        await self._client.hset(self._key, node, msgspec.json.encode(address).decode())

    async def withdraw(self, node: str, address: DoorAddress) -> None:
        """Remove the address of ``node``, unless a later start of its worker has stored its own."""
        if self._own_key:
            own = self._keys.node_door(node)
            if _read(node, cast("bytes | None", await self._client.get(own))) == address:
                await self._client.delete(own, self._keys.snapshot_door(node))
        elif await self.read(node) == address:
            await self._client.hdel(self._key, node)

    async def nodes(self) -> list[str]:
        """Return the nodes whose workers have stored an address, in order; a dead worker's may be among them."""
        names = {*cast("list[bytes]", await self._client.hkeys(self._key))}
        if not self._rollouts:
            names |= await cast("Any", self._client.smembers(self._keys.reporting_nodes))
        return sorted(name.decode(errors="replace") for name in names)

    async def read(self, node: str) -> DoorAddress | None:
        """Return the address of ``node``; None when its worker has stored none."""
        if not self._rollouts:
            own = cast("bytes | None", await self._client.get(self._keys.node_door(node)))
            if own is not None:
                return _read(node, own)
        return _read(node, cast("bytes | None", await self._client.hget(self._key, node)))

    async def of_snapshots(self, node: str) -> DoorAddress | None:
        """Return the address at which other nodes read the snapshots of ``node``."""
        shared = cast("bytes | None", await self._client.get(self._keys.snapshot_door(node)))
        if shared is not None:
            return _read(node, shared)
        return None if self._own_key else await self.read(node)


def _read(node: str, stored: bytes | None) -> DoorAddress | None:
    if stored is None:
        return None
    try:
        return _decoder.decode(stored)
    except msgspec.DecodeError as error:  # of a worker of another version
        log.error("the address of node %s cannot be read: %s", node, error)
        return None
