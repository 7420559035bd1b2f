"""Room for a service on the chunks of one node: GPU memory measured free, and host memory.

Rules 3, 6 and 10 of `keeper`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from domain.errors import CapacityError
from domain.services import ServiceState
from managers.gpu.engines import Server
from managers.gpu.gpu_locks import Gates
from managers.gpu.host_memory import Home, HostMemory, Units
from managers.gpu.shelf import Shelf, now

_PAUSE_SECONDS: Final = 0.02


class MemoryNotFreed(CapacityError):
    """GPU memory that was to be free is still in use."""

    def __init__(self, units: Units) -> None:
        super().__init__(f"memory of GPUs {units} was not free in time")
        self.units = units


class Room(Shelf):
    """Services of one node, and how much room is left beside them."""

    def __init__(
        self,
        make_server: Callable[[str, Units], Server],
        free_bytes: Callable[[int], int],
        patience_seconds: float,
        host: HostMemory,
    ) -> None:
        super().__init__(make_server, host)
        self._free_bytes = free_bytes
        self._patience_seconds = patience_seconds
        self._gates = Gates()

    async def _make_room(self, units: Units, memory_bytes: int) -> None:
        """Let those leave of whom the ledger does not know, as far as it takes (rule 6)."""
        for home in self._in(units, ServiceState.RESIDENT):
            if all(self._free_bytes(unit) >= memory_bytes for unit in units):
                return
            if self._kept[home].instance.evictable:
                await self._evict(home)
                self._lost.add(home)

    async def _make_host_room(self, home: Home, ours: set[int]) -> None:
        """End others until there is host memory for ``home``. Raises NoRoom when there is none in time.

        Only where nobody works: on GPUs that are ``ours``, and on idle ones, for which nobody waits.
        """
        until = now() + self._patience_seconds
        while not self.host.fits(home):
            spare = [
                other
                for state in (ServiceState.HOST_RESIDENT, ServiceState.RESIDENT)
                for other in self.host.oldest()
                if other != home and self._may_end(other, state, ours)
            ]
            if spare:
                async with self._gates.alone(set(spare[0][1]) - ours):
                    await self._end(spare[0])
            elif now() >= until:
                raise self.host.full(home)
            else:
                await asyncio.sleep(_PAUSE_SECONDS)

    def _may_end(self, home: Home, state: ServiceState, ours: set[int]) -> bool:
        kept = self._kept.get(home)
        if kept is None or kept.instance.state is not state or kept.instance.locks:
            return False
        return self._gates.idle(set(home[1]) - ours)

    async def _measured_free(self, units: Units, memory_bytes: int) -> None:
        full = await self._full(units, memory_bytes)
        for home in self._in(full, ServiceState.HOST_RESIDENT):  # they should hold nothing
            await self._end(home)
            full = await self._full(units, memory_bytes)
            if not full:
                break
        if full:
            raise MemoryNotFreed(full)

    async def _full(self, units: Units, memory_bytes: int) -> Units:
        """Return which of ``units`` have less than that free, even after waiting."""
        until = now() + self._patience_seconds
        while True:
            full = tuple(unit for unit in units if self._free_bytes(unit) < memory_bytes)
            if not full or now() >= until:
                return full
            await asyncio.sleep(_PAUSE_SECONDS)
