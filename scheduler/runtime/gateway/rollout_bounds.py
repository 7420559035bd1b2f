"""Bound of live rollouts: how many a project may have that are not finished.

It protects the other projects: each live rollout takes memory of the loop, and its log a place on the disk. Parked
rollouts count as well.

Rules
1. A request is admitted as a whole, or refused with 429 and ``Retry-After``.
2. The loop counts what it has read. A query passes the same inbox as submissions, so it counts all that this web process
   has appended before; what is admitted and not appended yet is counted here. Two web processes may together pass the
   bound by what they append at the same time.
3. A loop that does not answer within `ANSWER_SECONDS`, as while another leader takes over, refuses none: its inbox has a
   bound of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from domain.errors import Unavailable
from scheduler.runtime.gateway.http import HttpError
from scheduler.runtime.gateway.scheduler_queries import SchedulerQueries

#: Live rollouts of a project, unless the operator sets another number.
LIVE_ROLLOUTS: Final = 20_000
RETRY_SECONDS: Final = 5
ANSWER_SECONDS: Final = 1.0

log = logging.getLogger(__name__)


class RolloutBound:
    """The bound of each project, as one web process checks it."""

    def __init__(self, queries: SchedulerQueries, most: int = LIVE_ROLLOUTS) -> None:
        self._queries = queries
        self._most = most
        #: Project → rollouts that are admitted and not appended yet.
        self._coming: Counter[str] = Counter()

    @asynccontextmanager
    async def room(self, project: str, number: int) -> AsyncIterator[None]:
        """Admit ``number`` rollouts, which are appended within. Raises HttpError 429."""
        before = self._coming[project]
        self._coming[project] += number
        try:
            self._check(project, await self._present(project) + before, number)
            yield
        finally:
            self._coming[project] -= number
            if not self._coming[project]:
                del self._coming[project]

    async def _present(self, project: str) -> int:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return (await self._queries.rollouts(project=project, limit=0)).total
        except (TimeoutError, Unavailable) as error:
            log.warning("the rollouts of %s are not counted now: %s", project, error)
            return 0

    def _check(self, project: str, present: int, number: int) -> None:
        if present + number <= self._most:
            return
        raise HttpError(
            429,
            "project_limit_rollouts",
            f"project {project!r} has {present} rollouts that are not finished; with {number} more they are above"
            f" {self._most}: submit again when some have finished, cancel some (parked ones count),"
            " or have the operator raise TANGRAM_PROJECT_LIVE_ROLLOUTS",
            **{"Retry-After": str(RETRY_SECONDS)},
        )
