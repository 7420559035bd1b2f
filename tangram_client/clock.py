"""The time that the client lives in; tests give it another one (`testing.VirtualClock`)."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic seconds, and ways to let them pass."""

    def now(self) -> float:
        """Return seconds that never run backward."""

    def sleep(self, seconds: float) -> None:
        """Block for ``seconds``."""

    async def asleep(self, seconds: float) -> None:
        """Let other coroutines run for ``seconds``."""

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        """Block until ``stop`` is set (True) or ``seconds`` have passed (False)."""


class SystemClock:
    """The clock of this machine."""

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def asleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        return stop.wait(seconds)
