"""Fleets in force: the declared fleets and their workers, as the leader of the loop stored them last.

The stored capacity is read every second, and decoded where it is another one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final, cast

import msgspec
import redis
import redis.asyncio

from domain.redis_keys import Keys
from scheduler.runtime.capacity import CapacityView, FleetCapacity
from scheduler.runtime.redis.clients import keep_running

log = logging.getLogger(__name__)

POLL_SECONDS: Final = 1.0

_capacity = msgspec.json.Decoder(CapacityView)


class FleetsInForce:
    """The fleets, and an event that is set while they may have changed."""

    def __init__(
        self, client: redis.asyncio.Redis, keys: Keys, poll_seconds: float = POLL_SECONDS
    ) -> None:
        self._client, self._keys = client, keys
        self._poll_seconds = poll_seconds
        self._stored = b""
        #: They were read at least once.
        self.known = False
        self.fleets: Mapping[str, FleetCapacity] = {}
        #: Pool → capacities of each of its nodes, by resource.
        self.pools: Mapping[str, list[dict[str, int]]] = {}
        #: Set after each change; a reader clears it.
        self.changed = asyncio.Event()

    async def run(self) -> None:
        """Read changes until cancelled."""
        while keep_running():
            try:
                await self.read()
            except redis.RedisError as error:
                log.warning("the fleets in force cannot be read: %s", error)
            await asyncio.sleep(self._poll_seconds)

    async def read(self) -> None:
        """Read the stored capacity once. Raises RedisError."""
        stored = cast("bytes | None", await self._client.get(self._keys.capacity))
        if stored is None or stored == self._stored:
            return
        self._stored = stored
        try:
            capacity = _capacity.decode(stored)
        except msgspec.DecodeError as error:  # a leader of another version
            log.error(
                "the fleets in force stay as they are, the capacity cannot be read: %s", error
            )
            return
        self.known, self.pools = True, capacity.pools
        if capacity.fleets != self.fleets:
            self.fleets = capacity.fleets
            self.changed.set()
