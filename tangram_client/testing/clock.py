"""Virtual time: it passes when a caller waits for it."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime


class VirtualClock:
    """A clock whose sleeps take no time: they move it on, and are written down."""

    def __init__(self, at: float = 1_000.0) -> None:
        self._now = at
        #: Every pause that was slept, in order.
        self.slept: list[float] = []

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass."""
        self._now += seconds

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(seconds)

    async def asleep(self, seconds: float) -> None:
        self.sleep(seconds)
        await asyncio.sleep(0)

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        """Let ``seconds`` pass, unless ``stop`` is set; lets the other threads run first."""
        if stop.wait(0.001):
            return True
        self.advance(seconds)
        return False

    def rfc3339(self) -> str:
        """Return now as the server writes times."""
        return datetime.fromtimestamp(self._now, UTC).isoformat().replace("+00:00", "Z")
