"""Fake engine: it counts bytes instead of taking GPU memory.

It obeys the rules of `managers.gpu.engines` unless its ``trouble`` makes it misbehave: ``hangs`` and
``waits`` never answer, ``dies`` runs out of memory, ``keeps`` returns from an eviction and frees
nothing until it is ended, ``leaks`` not even then, ``late`` frees after the eviction has returned,
``breaks`` cannot be evicted, ``changes`` does not answer as before when it is restored again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from domain.services import ServiceEvent
from managers.gpu.engines import AnswersChanged, EngineFailed, failed_with


@dataclass
class FakeMemory:
    """Bytes in use of each GPU, as NVML would measure them."""

    used: dict[int, int] = field(default_factory=dict)

    def add(self, units: tuple[int, ...], count: int) -> None:
        """Take, or with a negative ``count`` free, memory of each of ``units``."""
        for unit in units:
            self.used[unit] = self.used.get(unit, 0) + count


class FakeEngineServer:
    """A service that needs ``memory_bytes`` of each of its GPUs."""

    def __init__(
        self,
        memory: FakeMemory,
        units: tuple[int, ...],
        memory_bytes: int,
        trouble: str = "",
        timeout_seconds: float = 0.02,
    ) -> None:
        self.memory = memory
        self.units = units
        self.trouble = trouble
        self.restores = 0
        #: Bytes that it holds of each GPU now.
        self.held = 0
        self._needs = memory_bytes
        self._timeout_seconds = timeout_seconds
        self._alive = False

    @property
    def base_url(self) -> str:
        """A placeholder that cannot be called."""
        return "fake://service" if self._alive else ""

    @property
    def alive(self) -> bool:
        """It answered once and has not ended since."""
        return self._alive

    async def restore(self) -> None:
        """Take the memory, or misbehave."""
        if self._alive:
            return
        self._hold(self._needs)
        try:
            await self._start()
        except TimeoutError:
            self._hold(0)
            raise EngineFailed(f"it did not answer within {self._timeout_seconds} s") from None
        except BaseException:
            self._hold(0)
            raise
        self.restores += 1
        self._alive = True

    async def prepare(self) -> None:
        """Take the memory and free it, or misbehave."""
        self._hold(self._needs)
        try:
            await self._start()
        except TimeoutError:
            raise EngineFailed(f"it did not answer within {self._timeout_seconds} s") from None
        finally:
            self._hold(0)

    async def evict(self) -> ServiceEvent:
        """Free the memory, or misbehave; the copy in host memory stays."""
        self._alive = False
        if self.trouble == "breaks":
            raise EngineFailed("it broke off while it was put to sleep")
        if self.trouble == "late":
            asyncio.get_running_loop().call_later(0.02, self._hold, 0)
        elif self.trouble not in ("keeps", "leaks"):
            self._hold(0)
        return ServiceEvent.EVICTED

    async def close(self) -> None:
        """End it."""
        self.crash()

    def crash(self) -> None:
        """End it from outside."""
        self._alive = False
        if self.trouble != "leaks":
            self._hold(0)

    def _hold(self, count: int) -> None:
        self.memory.add(self.units, count - self.held)
        self.held = count

    async def _start(self) -> None:
        if self.trouble == "dies":
            raise failed_with("it ended before it answered; its last words: out of memory")
        if self.trouble == "changes" and self.restores:
            raise AnswersChanged("its warm-up is answered otherwise")
        if self.trouble == "waits":
            await asyncio.Event().wait()
        if self.trouble == "hangs":
            async with asyncio.timeout(self._timeout_seconds):
                await asyncio.Event().wait()
        await asyncio.sleep(0)
