"""Unstarted attempts: those that were reported without a start, on disk before their report.

A start mark tells a successor that an attempt may have run. An attempt that was reported without a start has none, and
its order stays in the node's stream until all orders before it are settled. A successor that reads it again must not
run it: the action has ended, or runs as a later attempt (I3).

Rules
1. The mark is on disk before the report is sent; while it cannot be written, the report waits.
2. A successor reports the attempt as never started once more, in case the report was not sent.
3. A mark is removed with the start marks: when its order is not read again and its report is on disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from domain.action import Outcome
from domain.events import ActionFinished
from managers.common.start_log import StartLog, StartLogWriter, leftover
from scheduler.runtime.redis.clients import keep_running

log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 0.5


class UnstartedAttempts:
    """The marks of one node worker."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: StartLogWriter | None = None

    def open(self) -> set[str]:
        """Return the marks of predecessors. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        marks = StartLog(self._folder / "unstarted.log")
        found = set(marks.open())
        self._writer = StartLogWriter(marks, "tangram-unstarted")
        return found

    async def add(self, mark: str) -> None:
        """Mark an attempt; when this returns, the mark is on disk."""
        while self._writer is not None and keep_running():
            try:
                await self._writer.add(mark)
            except OSError as error:
                log.warning("the report of %s waits, its mark cannot be written: %s", mark, error)
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return

    def remove(self, marks: Iterable[str]) -> None:
        """Remove marks, asynchronously."""
        if self._writer is not None:
            self._writer.remove(marks)

    def close(self) -> None:
        """Close the file; may be repeated. Blocks."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def unstarted_report(mark: str, node: str) -> ActionFinished:
    """Return the report of an attempt that a predecessor marked."""
    found = leftover(mark, ended=True)
    return ActionFinished(
        action_id=found.action_id,
        node=node,
        outcome=Outcome.INFRA_FAILED,
        attempt=found.attempt,
        never_started=True,
        detail="the node worker died before it reported that the action was not started",
    )
