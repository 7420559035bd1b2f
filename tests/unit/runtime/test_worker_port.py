"""The port of a rollout worker: a log that waits for its disk holds up its own rollout alone."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

from domain.errors import CapacityError
from domain.rollouts import Rollout
from rollout.ports import Assigned, Withdrawn
from scheduler.runtime.rollouts.assignments import Assignments
from scheduler.runtime.rollouts.log_store import RolloutLogs
from scheduler.runtime.rollouts.worker_port import WorkerPort
from tests.unit.rollout.builders import a_rollout


class HalfFullLogs(RolloutLogs):
    """Logs of which some cannot be written."""

    def __init__(self, folder: Path, *full: str) -> None:
        super().__init__(folder)
        self.full = set(full)
        self.refused = threading.Event()

    def fence(self, rollout: str, attempt: int) -> None:
        """Refuse those that cannot be written."""
        if rollout in self.full:
            self.refused.set()
            raise CapacityError("the disk is full")


class Idle:
    """Leases or environments that do nothing."""

    async def keep(self) -> None:
        """Wait."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Do nothing."""

    def hold(self, rollout: Rollout) -> None:
        """Do nothing."""

    def drop(self, rollout: str) -> None:
        """Do nothing."""


async def test_a_log_on_a_full_disk_holds_up_its_own_rollout_alone(tmp_path: Path) -> None:
    assignments, idle = Assignments("w1", 1), Idle()
    room = asyncio.Event()

    async def pause(_: float) -> None:
        await asyncio.sleep(0)
        await room.wait()

    logs = HalfFullLogs(tmp_path, "rol_1")
    calls: Any = None
    leases: Any = idle
    environments: Any = idle
    port = WorkerPort(calls, assignments, leases, environments, logs, pause)
    first, second = Assigned(a_rollout("rol_1"), 1), Assigned(a_rollout("rol_2"), 1)
    for each in (first, second):
        assignments.held[each.rollout.id] = each.attempt
        assignments._queue.put_nowait(each)
    withdrawn = Withdrawn("rol_3", 1, "cancelled")
    assignments._queue.put_nowait(withdrawn)

    duty = asyncio.create_task(port.run())
    try:
        async with asyncio.timeout(60):
            changes = port.assignments()
            assert await anext(changes) == withdrawn
            assert await anext(changes) == second
            while not logs.refused.is_set():
                await asyncio.sleep(0)
            logs.full.clear()
            room.set()
            assert await anext(changes) == first
    finally:
        duty.cancel()
        await asyncio.wait({duty})
