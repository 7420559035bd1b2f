"""Memory reclaim on the chunks of one node: GPU memory until it is measured free, and host memory.

Rules 3, 6 and 10 of `service_runner`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from domain.errors import CapacityError
from domain.services import ServiceState
from managers.gpu.gpu_locks import GpuLocks
from managers.gpu.host_memory import Home, Units
from managers.gpu.residents_store import ResidentsStore, now

_PAUSE_SECONDS: Final = 0.02


class MemoryNotFreed(CapacityError):
    """GPU memory that should be free is still in use."""

    def __init__(self, units: Units) -> None:
        super().__init__(f"memory of GPUs {units} was not free in time")
        self.units = units


class MemoryReclaimer:
    """Frees memory by evicting or ending services that no request uses."""

    def __init__(
        self,
        store: ResidentsStore,
        locks: GpuLocks,
        free_bytes: Callable[[int], int],
        patience_seconds: float,
    ) -> None:
        """``free_bytes`` measures one GPU; it is polled for at most ``patience_seconds``."""
        self._store = store
        self._locks = locks
        self._free_bytes = free_bytes
        self.patience_seconds = patience_seconds

    def is_free(self, units: Units, memory_bytes: int) -> bool:
        """Say whether each of ``units`` has ``memory_bytes`` free now."""
        return all(self._free_bytes(unit) >= memory_bytes for unit in units)

    async def evict_unknown(self, units: Units, memory_bytes: int) -> None:
        """Evict services that the ledger does not know of, until there is room (rule 6)."""
        for home in self._store.in_state(units, ServiceState.RESIDENT):
            if self.is_free(units, memory_bytes):
                return
            service = self._store.get(home)
            if service is not None and service.instance.evictable:
                await self._store.evict(home)
                self._store.add_lost(home)

    async def free_host(self, home: Home, ours: set[int]) -> None:
        """End services until there is host memory for ``home``. Raises NoRoom when it takes too long.

        Only services on GPUs that are ``ours``, and on idle ones, which no task waits for, are ended.
        """
        host, until = self._store.host, now() + self.patience_seconds
        while not host.fits(home):
            spare = [
                other
                for state in (ServiceState.HOST_RESIDENT, ServiceState.RESIDENT)
                for other in host.oldest()
                if other != home and self._may_end(other, state, ours)
            ]
            if spare:
                async with self._locks.hold(set(spare[0][1]) - ours):
                    await self._store.end(spare[0])
            elif now() >= until:
                raise host.full(home)
            else:
                await asyncio.sleep(_PAUSE_SECONDS)

    async def wait_free(self, units: Units, memory_bytes: int) -> None:
        """Wait until ``memory_bytes`` are measured free on each of ``units``. Raises MemoryNotFreed.

        Sleeping services, which should hold nothing, are ended when the wait is too long.
        """
        full = await self._still_full(units, memory_bytes)
        for home in self._store.in_state(full, ServiceState.HOST_RESIDENT):
            await self._store.end(home)
            full = await self._still_full(units, memory_bytes)
            if not full:
                break
        if full:
            raise MemoryNotFreed(full)

    def _may_end(self, home: Home, state: ServiceState, ours: set[int]) -> bool:
        service = self._store.get(home)
        if service is None or service.instance.state is not state or service.instance.locks:
            return False
        return self._locks.idle(set(home[1]) - ours)

    async def _still_full(self, units: Units, memory_bytes: int) -> Units:
        """Return which of ``units`` have less than ``memory_bytes`` free after the patience."""
        until = now() + self.patience_seconds
        while True:
            full = tuple(unit for unit in units if self._free_bytes(unit) < memory_bytes)
            if not full or now() >= until:
                return full
            await asyncio.sleep(_PAUSE_SECONDS)
