"""GPU locks: one task at a time works on a GPU, in order of arrival.

A task locks GPUs in the order of their numbers, so no cycle of waiting tasks can form. A task that
holds some may lock further ones out of order only while these are *idle*, because then it does not
wait. Tasks on disjoint GPUs never wait for each other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable


class GpuLocks:
    """A lock for each GPU."""

    def __init__(self) -> None:
        self._locks: dict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        #: Tasks that hold a GPU or wait for it.
        self._users: Counter[int] = Counter()

    def idle(self, units: Iterable[int]) -> bool:
        """Say whether no task holds any of ``units`` or waits for one."""
        return not any(self._users[unit] for unit in units)

    @contextlib.asynccontextmanager
    async def hold(self, units: Iterable[int]) -> AsyncIterator[None]:
        """Hold all of ``units`` exclusively."""
        ordered = sorted(set(units))
        self._users.update(ordered)
        try:
            async with contextlib.AsyncExitStack() as stack:
                for unit in ordered:
                    await stack.enter_async_context(self._locks[unit])
                yield
        finally:
            self._users.subtract(ordered)
