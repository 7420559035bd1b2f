"""Rollout worker: takes rollouts from its port and drives them, up to a thousand in one event loop.

    await RolloutWorker(port, handlers(), slots=256).run()

Lifetimes: `run` lasts until it is cancelled. Then handler processes end, and rollouts stay as their logs have them: the
scheduler assigns them again, and a successor continues them.

Rules
1. A rollout that is assigned twice runs once: the later attempt replaces the earlier one.
2. An error of one rollout ends that one alone; an error of `assignments` ends the worker.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from domain.errors import NotFound
from rollout.ports import Assigned, RolloutPort, Withdrawn
from rollout.worker.handler_pool import HandlerPool
from rollout.worker.rollout_run import RolloutRun
from rollout.worker.run_context import Pause

log = logging.getLogger(__name__)


def usual_processes(slots: int) -> int:
    """Return how many handler processes a worker of so many slots has at most: one for each core that it may use."""
    return max(1, min(slots, len(os.sched_getaffinity(0))))


class RolloutWorker:
    """One rollout worker. ``handlers``: name → ``module:class``, as `rollout.handlers.registry` finds them."""

    def __init__(
        self,
        port: RolloutPort,
        handlers: Mapping[str, str],
        slots: int,
        *,
        pool: HandlerPool | None = None,
        now: Callable[[], float] = time.monotonic,
        pause: Pause = asyncio.sleep,
    ) -> None:
        self.slots = slots
        self._port = port
        self._handlers = handlers
        self._pool = pool or HandlerPool(usual_processes(slots))
        self._now = now
        self._pause = pause
        self._runs: dict[str, RolloutRun] = {}
        #: Of all runs, also withdrawn ones that close what they have.
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def rollouts(self) -> int:
        """Number of rollouts that it has."""
        return len(self._runs)

    @property
    def processes(self) -> int:
        """Number of handler processes that run."""
        return self._pool.processes

    async def ask(self, rollout: str, method: str, body: Mapping[str, Any]) -> Any:
        """Ask the handler of a rollout something, from outside. Raises NotFound for one that is not here, and as `RolloutRun.ask`."""
        run = self._runs.get(rollout)
        if run is None:
            raise NotFound(f"{rollout} does not run here", code="not_here")
        return await run.ask(method, body)

    async def run(self) -> None:
        """Drive rollouts until cancelled."""
        try:
            async for change in self._port.assignments():
                if isinstance(change, Assigned):
                    self._begin(change)
                else:
                    self._withdraw(change)
        finally:
            await self.stop()

    def _begin(self, assigned: Assigned) -> None:
        rollout = assigned.rollout.id
        if (present := self._runs.get(rollout)) is not None:
            if present.attempt >= assigned.attempt:
                return
            self._withdraw(Withdrawn(rollout, present.attempt, "assigned again"))
        run = RolloutRun(self._port, self._pool, self._handlers, assigned, self._now, self._pause)
        task = asyncio.create_task(run.run(), name=f"rollout {rollout}")
        self._runs[rollout] = run
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, run))

    def _withdraw(self, withdrawn: Withdrawn) -> None:
        present = self._runs.get(withdrawn.rollout_id)
        if present is not None and present.attempt <= withdrawn.attempt:
            del self._runs[withdrawn.rollout_id]
            present.withdraw(withdrawn)

    def _ended(self, run: RolloutRun, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        present = self._runs.get(run.rollout.id)
        if present is run:
            del self._runs[run.rollout.id]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed", task.get_name(), exc_info=error)

    async def stop(self) -> None:
        """End all runs and handler processes; what the rollouts have stays for a successor."""
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._pool.close()
