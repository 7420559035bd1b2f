"""Grants of leases, as the journal has them: a worker reads there that a lease is held, without a query each."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from typing import Final

from domain.allocation import Allocation
from domain.decisions import Grant
from domain.journal_reducer import JournalReducer, on

#: Latest grants that are kept, for a wait that begins after its grant.
RECENT: Final = 4096

Allocations = tuple[Allocation, ...]


class LeaseGrants(JournalReducer):
    """What the latest leases hold, and the waits for others."""

    def __init__(self) -> None:
        super().__init__()
        self._recent: OrderedDict[str, Allocations] = OrderedDict()
        self._waiting: dict[str, list[asyncio.Future[Allocations | None]]] = defaultdict(list)

    def of(self, action_id: str) -> asyncio.Future[Allocations | None]:
        """Return a future of what a lease holds; None: query it. `discard` it after use."""
        future: asyncio.Future[Allocations | None] = asyncio.get_running_loop().create_future()
        known = self._recent.get(action_id)
        if known is not None:
            future.set_result(known)
        else:
            self._waiting[action_id].append(future)
        return future

    def discard(self, action_id: str, future: asyncio.Future[Allocations | None]) -> None:
        """Drop a future; idempotent."""
        waiting = self._waiting.get(action_id, [])
        if future in waiting:
            waiting.remove(future)
            if not waiting:
                del self._waiting[action_id]

    def skipped(self) -> None:
        """Resolve all waits with None: an entry that could not be read may concern them."""
        for waiting in self._waiting.values():
            _resolve(waiting, None)
        self._waiting.clear()

    @on(Grant)
    def _granted(self, grant: Grant) -> None:
        if grant.expires_at is None:
            return
        self._recent[grant.action_id] = grant.allocations
        if len(self._recent) > RECENT:
            self._recent.popitem(last=False)
        _resolve(self._waiting.pop(grant.action_id, ()), grant.allocations)


def _resolve(
    waiting: Iterable[asyncio.Future[Allocations | None]], found: Allocations | None
) -> None:
    for future in waiting:
        if not future.done():
            future.set_result(found)
