"""Gate of a node's door: requests about an environment that is being moved wait until its move has ended.

A request counts as a use of its trajectory's environment while its handler runs. Where the gate is closed, a new request
waits: afterwards its handler finds the environment used as before, or gone, which sends the client to the other node.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from domain.errors import Unavailable
from domain.ids import TrajectoryKey

#: Longest wait of a request, below the patience of web processes.
WAIT_SECONDS: Final = 45.0


class EnvironmentGate:
    """The environments of one node that requests must not use now, and the requests that use any."""

    def __init__(self, wait_seconds: float = WAIT_SECONDS) -> None:
        self._wait_seconds = wait_seconds
        self._closed: dict[TrajectoryKey, asyncio.Event] = {}
        self._uses: Counter[TrajectoryKey] = Counter()

    def close(self, trajectory: TrajectoryKey) -> None:
        """Let requests that arrive from now on wait. Idempotent."""
        self._closed.setdefault(trajectory, asyncio.Event())

    def open(self, trajectory: TrajectoryKey) -> None:
        """Let requests go on. Idempotent."""
        opened = self._closed.pop(trajectory, None)
        if opened is not None:
            opened.set()

    def uses(self, trajectory: TrajectoryKey) -> int:
        """Return the requests whose handlers run."""
        return self._uses[trajectory]

    @asynccontextmanager
    async def using(self, trajectory: TrajectoryKey) -> AsyncIterator[None]:
        """Use the environment of a trajectory; empty: the request is about none. Raises Unavailable after a long wait."""
        if not trajectory:
            yield
            return
        while (opened := self._closed.get(trajectory)) is not None:
            try:
                async with asyncio.timeout(self._wait_seconds):
                    await opened.wait()
            except TimeoutError:
                name = trajectory.partition("/")[2]
                raise Unavailable(
                    f"the environment of trajectory {name!r} is being moved to another node; try again"
                ) from None
        self._uses[trajectory] += 1
        try:
            yield
        finally:
            self._uses[trajectory] -= 1
            if not self._uses[trajectory]:
                del self._uses[trajectory]
