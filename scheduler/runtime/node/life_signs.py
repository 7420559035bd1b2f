"""Signs of life of a node: the loop sees by them that it lives, pages and the doctor what its machine is like."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final

import msgspec
import redis.asyncio
from msgspec.structs import replace

from contract.machine_facts import MachineFacts
from domain.ports import Driver
from domain.redis_keys import Keys
from scheduler.runtime.node.door.server import NodeDoor
from scheduler.runtime.node.driver_facts import driver_facts
from scheduler.runtime.node.machine_facts import WatchedDisks, clock_against_redis, machine_facts

#: A node without a sign of life for this time is lost.
ALIVE_SECONDS: Final = 5.0
#: The address of the door is stored again this often: a Redis that lost its data has it again. The clock and the settings
#: of the kernel are looked at as often.
RARELY_SECONDS: Final = 12.0


class LifeSigns:
    """The signs of life of one node worker."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        keys: Keys,
        node: str,
        drivers: Sequence[Driver],
        disks: WatchedDisks,
        door: NodeDoor | None,
        clock: Callable[[], float],
    ) -> None:
        """``clock``: wall clock of this machine."""
        self._client = client
        self._keys = keys
        self._node = node
        self._drivers = drivers
        self._disks = disks
        self._door = door
        self._clock = clock
        self._machine = MachineFacts()
        self._machine_due_at = self._door_due_at = 0.0

    async def show(self, incarnation: int) -> None:
        """Store a sign of life. Raises RedisError."""
        name = self._node
        own = {"role": "node", "pid": os.getpid(), "at": self._clock()}
        facts = {**own, **await driver_facts(self._drivers), "machine": await self._machine_now()}
        async with self._client.pipeline(transaction=False) as pipeline:
            pipeline.set(self._keys.alive(name), incarnation, px=int(ALIVE_SECONDS * 1000))
            pipeline.hset(self._keys.workers, f"node@{name}", json.dumps(facts))
            await pipeline.execute()
        if self._door is not None and monotonic() >= self._door_due_at:
            await self._door.publish()
            self._door_due_at = monotonic() + RARELY_SECONDS

    async def _machine_now(self) -> object:
        if monotonic() >= self._machine_due_at:
            difference = await clock_against_redis(self._client, self._clock)
            self._machine = machine_facts(self._disks, difference)
            self._machine_due_at = monotonic() + RARELY_SECONDS
        now = replace(
            self._machine, disks=self._disks.disk_facts(), disk_refusal=self._disks.refusal
        )
        return msgspec.to_builtins(now)
