"""A service runner with fake services of 60 bytes on GPUs of 80 bytes."""

from __future__ import annotations

import asyncio

from domain.services import ServiceState
from managers.gpu.engines.fake import FakeEngineServer, FakeMemory
from managers.gpu.host_memory import Home, HostMemory
from managers.gpu.service_runner import ServiceRunner

SIZE, NEED = 80, 60
A: Home = ("a", (0, 1))
B: Home = ("b", (0, 1))


class Rig:
    """A runner of fake services, and what they hold."""

    #: Timeout of conditions that do not become true.
    patience_seconds = 0.2

    def __init__(self, host_bytes: int | None = None) -> None:
        """``host_bytes``: host memory for services, of which each takes 10."""
        self.memory = FakeMemory()
        self.servers: dict[Home, FakeEngineServer] = {}
        self.troubles: dict[str, str] = {}
        self.host = HostMemory(host_bytes, lambda _: 10)
        self.runner = ServiceRunner(self._make, self._free, self.patience_seconds, self.host)

    def _make(self, service: str, units: tuple[int, ...]) -> FakeEngineServer:
        server = FakeEngineServer(self.memory, units, NEED, self.troubles.get(service, ""))
        self.servers[service, units] = server
        return server

    def _free(self, unit: int) -> int:
        free = SIZE - self.memory.used.get(unit, 0)
        assert free >= 0, "more is held than there is"
        return free

    def states(self) -> dict[str, ServiceState]:
        """Return where each service is."""
        return {each.service: each.state for each in self.runner.store.instances()}

    def check(self) -> None:
        """Check that all memory is accounted for: of GPUs by resident services, of the host by services that are not cold."""
        for unit, used in self.memory.used.items():
            assert used == NEED * sum(unit in units for _, units in self.runner.store.in_memory())
        warm = [
            each for each in self.runner.store.instances() if each.state is not ServiceState.COLD
        ]
        assert self.host.used_bytes == 10 * len(warm)

    async def close(self) -> None:
        """End everything; nothing is held then."""
        await self.runner.close()
        assert set(self.memory.used.values()) <= {0}
        assert self.host.used_bytes == 0

    async def used(self, home: Home) -> None:
        """Let a service be called, and stay cached."""
        await self.runner.hold("other", home, NEED)
        self.runner.release("other", home)

    async def asleep(self, home: Home) -> None:
        """Let a service be called and put to sleep."""
        await self.used(home)
        await self.runner.evict(home)


async def coming(rig: Rig, home: Home) -> asyncio.Task[None]:
    """Return the preload of ``home``, once it has begun to take memory."""
    work = asyncio.ensure_future(rig.runner.prefetch(home, NEED))
    while not rig.memory.used.get(home[1][0]):
        await asyncio.sleep(0)
    return work
