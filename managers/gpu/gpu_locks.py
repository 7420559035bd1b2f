"""Whose turn it is on a GPU: one at a time, in the order in which they came.

GPUs are locked in the order of their numbers, so nobody waits in a circle. Whoever holds some may lock
others too, whatever their numbers, while those are *idle*: nobody is there or waits, so it waits for
nobody either. GPUs of which none is the same never wait for each other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable


class Gates:
    """A lock for each GPU."""

    def __init__(self) -> None:
        self._locks: dict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        #: How many are there, or wait.
        self._present: Counter[int] = Counter()

    def idle(self, units: Iterable[int]) -> bool:
        """Say whether nobody is on any of ``units``, or waits for one."""
        return not any(self._present[unit] for unit in units)

    @contextlib.asynccontextmanager
    async def alone(self, units: Iterable[int]) -> AsyncIterator[None]:
        """Be the only one on ``units``."""
        ordered = sorted(set(units))
        self._present.update(ordered)
        try:
            async with contextlib.AsyncExitStack() as stack:
                for unit in ordered:
                    await stack.enter_async_context(self._locks[unit])
                yield
        finally:
            self._present.subtract(ordered)
