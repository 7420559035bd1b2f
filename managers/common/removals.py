"""Removals: the environments of one driver that are being removed, and what is about to use one.

An environment and the one that a later request makes have the same name and the same folder. So a request that
arrives while the environment of its trajectory is removed waits for the end of the removal, and a removal waits for the
requests that arrived before it: none of them sees a folder half deleted, or keeps what the driver knew about
the former environment.

A run is *entered* until it is one of the driver's runs, which a removal stops. The removal stops them again when the
last run is entered, because that one may have waited for another attempt to end.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from domain.ids import TrajectoryKey


class Entry:
    """One request that uses the environment of a trajectory, until it has left."""

    def __init__(self, removals: Removals, trajectory: TrajectoryKey | None) -> None:
        self._removals, self._trajectory = removals, trajectory

    def leave(self) -> None:
        """End the use. Idempotent."""
        trajectory, self._trajectory = self._trajectory, None
        if trajectory is not None:
            self._removals._left(trajectory)


class Removals:
    """The removals of one driver."""

    def __init__(self) -> None:
        #: Trajectory → done when its removal is over.
        self._open: dict[TrajectoryKey, asyncio.Future[None]] = {}
        self._entered: Counter[TrajectoryKey] = Counter()
        #: Trajectory → done when nothing is entered any more; only while a removal waits for it.
        self._emptied: dict[TrajectoryKey, asyncio.Future[None]] = {}

    async def enter(self, trajectory: TrajectoryKey | None) -> Entry:
        """Wait for a removal in progress, and return the entry of a request; leave it.

        Does not suspend where nothing is removed. None: an action without a trajectory.
        """
        if trajectory is not None:
            while (removal := self._open.get(trajectory)) is not None:
                await asyncio.wait([removal])
            self._entered[trajectory] += 1
        return Entry(self, trajectory)

    def is_used(self, trajectory: TrajectoryKey) -> bool:
        """Return whether a request uses the environment of a trajectory, or it is being removed."""
        return bool(self._entered[trajectory]) or trajectory in self._open

    @asynccontextmanager
    async def using(self, trajectory: TrajectoryKey) -> AsyncIterator[None]:
        """Use the environment of a trajectory meanwhile."""
        entry = await self.enter(trajectory)
        try:
            yield
        finally:
            entry.leave()

    @asynccontextmanager
    async def removing(
        self, trajectory: TrajectoryKey, stop: Callable[[], Awaitable[None]]
    ) -> AsyncIterator[None]:
        """Remove the environment of a trajectory meanwhile; removals of one trajectory are in turn.

        ``stop`` ends the runs of the trajectory, and waits for their end.
        """
        while (other := self._open.get(trajectory)) is not None:
            await asyncio.wait([other])
        over = self._open[trajectory] = asyncio.get_running_loop().create_future()
        try:
            await stop()
            while self._entered[trajectory]:
                emptied = asyncio.get_running_loop().create_future()
                self._emptied[trajectory] = emptied
                await emptied
                await stop()
            yield
        finally:
            self._emptied.pop(trajectory, None)
            del self._open[trajectory]
            over.set_result(None)

    def _left(self, trajectory: TrajectoryKey) -> None:
        self._entered[trajectory] -= 1
        if self._entered[trajectory]:
            return
        emptied = self._emptied.pop(trajectory, None)
        del self._entered[trajectory]
        if emptied is not None and not emptied.done():
            emptied.set_result(None)
