"""Sweeper of rollout logs: deletes those of rollouts that are over, after their time of retention.

The core is asked for each log without a write for that long: a rollout that waits or is parked keeps its log. A log whose
submission failed belongs to no rollout, and is deleted as well. A trainer that acknowledges deletes its logs earlier.

A sweep continues behind the last log of the one before, by id, so logs that are kept do not hold up the others.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Awaitable, Callable
from typing import Final

from domain.errors import TangramError, Unavailable
from scheduler.runtime.gateway.scheduler_queries import SchedulerQueries
from scheduler.runtime.redis.clients import keep_running
from scheduler.runtime.rollouts.log_store import RolloutLogs

log = logging.getLogger(__name__)

SWEEP_SECONDS: Final = 600.0
#: Logs that one sweep looks at.
MOST: Final = 1000

Pause = Callable[[float], Awaitable[object]]


class LogSweeper:
    """Deletes logs in the background of a rollout worker."""

    def __init__(
        self,
        logs: RolloutLogs,
        queries: SchedulerQueries,
        retention_seconds: float,
        pause: Pause = asyncio.sleep,
    ) -> None:
        self._logs = logs
        self._queries = queries
        self._retention_seconds = retention_seconds
        self._pause = pause
        #: Last log of the sweep before; empty: the next sweep begins with the first.
        self._after = ""

    async def run(self) -> None:
        """Sweep until cancelled."""
        while keep_running():
            await self._pause(SWEEP_SECONDS)
            try:
                if removed := await self.sweep():
                    log.info("%d logs of rollouts are deleted", removed)
            except (TangramError, OSError) as error:
                log.warning("logs of rollouts cannot be deleted: %s", error)

    async def sweep(self) -> int:
        """Delete logs that are due, at most `MOST`; return their number. Raises Unavailable, OSError."""
        removed = 0
        due = sorted(await asyncio.to_thread(self._logs.untouched, self._retention_seconds))
        start = bisect_right(due, self._after)
        for rollout in due[start : start + MOST]:
            self._after = rollout
            try:
                found = await self._queries.rollouts(rollout_id=rollout)
                if not found.rollouts:
                    removed += await asyncio.to_thread(self._logs.remove, rollout)
            except Unavailable:
                raise
            except (TangramError, OSError) as error:
                log.warning("the log of %s cannot be deleted: %s", rollout, error)
        if start + MOST >= len(due):
            self._after = ""
        return removed
