"""Bytes of requests that are open at once in one process, bounded for each owner.

A number of requests is no bound of memory: one may be a thousand times larger than another. So a request takes room for its bytes
before they are read, and waits, unread, while the open ones of its owner have no room left.

Rules
1. Requests of one owner get room in the order of their arrival; those of another do not wait for them.
2. A request that is alone has room, however large it is.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class OpenBytes:
    """The open bytes of one process."""

    def __init__(self, most: int) -> None:
        """``most``: of one owner."""
        self._most = most
        self._open: Counter[str] = Counter()
        #: Owner → sizes that wait.
        self._waiting: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}

    @asynccontextmanager
    async def room(self, owner: str, size: int) -> AsyncIterator[None]:
        """Hold so many bytes, once there is room for them."""
        waiting = self._waiting.setdefault(owner, deque())
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append((size, turn))
        self._next(owner)
        try:
            await turn
            yield
        finally:
            if not turn.cancelled():
                self._open[owner] -= size
            self._next(owner)

    def _next(self, owner: str) -> None:
        """Give room to those that wait, in their order."""
        waiting = self._waiting.get(owner)
        while waiting:
            size, turn = waiting[0]
            if not turn.cancelled():
                if self._open[owner] and self._open[owner] + size > self._most:
                    return
                self._open[owner] += size
                turn.set_result(None)
            waiting.popleft()
        if not self._open[owner]:
            del self._open[owner]
            self._waiting.pop(owner, None)
