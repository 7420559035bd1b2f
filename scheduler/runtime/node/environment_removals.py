"""Removals of environments from a node, after what reads or makes them has ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from domain.codec import NodeCommand
from domain.events import EnvironmentRemoved
from domain.ids import TrajectoryKey
from domain.ports import Driver
from scheduler.runtime.node.environment_forks import EnvironmentForks
from scheduler.runtime.node.environment_moves import EnvironmentMoves
from scheduler.runtime.node.reporter import Reporter

log = logging.getLogger(__name__)
#: Pause before another attempt to remove an environment: its engine may be restarting.
REMOVE_AGAIN_SECONDS: Final = 5.0


class EnvironmentRemovals:
    """Removes environments from all drivers of a node."""

    def __init__(
        self,
        node: str,
        drivers: Sequence[Driver],
        forks: EnvironmentForks,
        moves: EnvironmentMoves,
        reporter: Reporter,
    ) -> None:
        self._node = node
        self._drivers = drivers
        self._forks = forks
        self._moves = moves
        self._reporter = reporter

    async def remove(
        self, trajectory: TrajectoryKey, settled: Callable[[], None], *, copied: bool = False
    ) -> None:
        """Remove an environment, with retries, and report; its memory is free only then. ``copied``: its trajectory lives elsewhere."""
        await self._forks.ended(trajectory)
        await self._moves.ended(trajectory)
        await self.remove_everywhere(trajectory)
        await self._moves.release(trajectory)
        removed = EnvironmentRemoved(trajectory=trajectory, node=self._node, copied=copied)
        self._reporter.report(removed, settled)

    async def forget(self, commands: Iterable[NodeCommand]) -> None:
        """Remove what commands of a former identity wanted to be removed; nothing is reported."""
        for command in commands:
            end, removal = command.end_move, command.remove
            if end is not None and end.lives_on != self._node:
                removed = end.trajectory
            elif removal is not None:
                removed = removal.trajectory
            else:
                continue
            await self.remove_everywhere(removed)
            await self._moves.release(removed)

    async def remove_everywhere(self, trajectory: TrajectoryKey) -> None:
        """Remove an environment from each driver."""
        for driver in self._drivers:
            while not await _removed(driver, trajectory):  # noqa: ASYNC110 (no event to wait for)
                await asyncio.sleep(REMOVE_AGAIN_SECONDS)


async def _removed(driver: Driver, trajectory: TrajectoryKey) -> bool:
    try:
        await driver.remove_environment(trajectory)
    except Exception as error:
        log.warning("the environment of %s cannot be removed yet: %r", trajectory, error)
        return False
    return True
