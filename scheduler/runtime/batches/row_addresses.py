"""Addresses at which rollout workers serve rows: published with each sign of life, read for manifests."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import redis.asyncio

from contract.batch_views import RowWorker
from domain.redis_keys import Keys


class RowAddress(msgspec.Struct, frozen=True):
    """Where one start of a rollout worker serves rows."""

    #: ``host:port``.
    address: str
    incarnation: int


_decoder = msgspec.json.Decoder(RowAddress)


class RowAddresses:
    """The stored addresses. All methods raise redis.RedisError when Redis does not answer."""

    def __init__(self, client: redis.asyncio.Redis, keys: Keys) -> None:
        self._client = client
        self._keys = keys

    async def publish(self, worker: str, address: RowAddress) -> None:
        """Store the address of a worker."""
        text = msgspec.json.encode(address).decode()
        await cast("Any", self._client.hset(self._keys.row_doors, worker, text))

    async def withdraw(self, worker: str, address: RowAddress) -> None:
        """Remove the address of a worker, unless a later start has stored its own."""
        stored = await cast("Any", self._client.hget(self._keys.row_doors, worker))
        if stored == msgspec.json.encode(address):
            await cast("Any", self._client.hdel(self._keys.row_doors, worker))

    async def living(self) -> list[RowWorker]:
        """Return the workers that show life, by name."""
        stored = await cast("Any", self._client.hgetall(self._keys.row_doors))
        names = sorted(name.decode() for name in stored)
        if not names:
            return []
        alive = await self._client.mget([self._keys.rollout_worker_alive(name) for name in names])
        found = []
        for name, incarnation in zip(names, alive, strict=True):
            address = _decoder.decode(stored[name.encode()])
            if incarnation is not None and int(incarnation) == address.incarnation:
                found.append(RowWorker(name, address.address))
        return found
