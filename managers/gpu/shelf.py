"""The services of one node, wherever in their lives they are, and what moves each of them on.

Nobody waits for turns here: that is `keeper`. Every move is a transition of `domain.services`. Whoever
becomes cold gives its host memory back (`host`); whoever leaves without having been told is *lost*
until the ledger is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from domain.services import ServiceEvent, ServiceState
from managers.gpu.engines import AnswersChanged, EngineFailed, Server
from managers.gpu.host_memory import Home, HostMemory, Units
from managers.gpu.instance import Instance

_TAKING_MEMORY: Final = frozenset(
    {ServiceState.RESTORING, ServiceState.RESIDENT, ServiceState.DRAINING}
)


class Quarantined(EngineFailed):
    """It did not answer as before on these GPUs, and is not brought there again."""

    def __init__(self, home: Home, why: str) -> None:
        super().__init__(f"it is in quarantine on GPUs {home[1]}: {why}")


class Kept(NamedTuple):
    """A service that was brought home once."""

    instance: Instance
    server: Server

    @property
    def home(self) -> Home:
        """Where it is."""
        return self.instance.service, self.instance.units

    def note(self, event: ServiceEvent) -> None:
        """Note what happened now."""
        self.instance.handle(event, now())


class Shelf:
    """Services by home."""

    def __init__(self, make_server: Callable[[str, Units], Server], host: HostMemory) -> None:
        self._make_server = make_server
        self.host = host
        self._kept: dict[Home, Kept] = {}
        #: What is to be ended when nobody keeps it awake.
        self._doomed: set[Home] = set()
        self._lost: set[Home] = set()
        self._quarantined: dict[Home, str] = {}

    def instances(self) -> list[Instance]:
        """Return every service that was ever brought here."""
        return [kept.instance for kept in self._kept.values()]

    def kept(self, home: Home) -> bool:
        """Say whether a service was brought home once, and was not ended since."""
        return home in self._kept

    def in_memory(self) -> list[Home]:
        """Return who takes GPU memory, or is about to."""
        return [home for home, kept in self._kept.items() if kept.instance.state in _TAKING_MEMORY]

    def take_lost(self) -> tuple[Home, ...]:
        """Return who is in memory no more without having been told to leave; forget them."""
        lost, self._lost = self._lost, set()
        return tuple(sorted(lost))

    def let_go(self, holder: str, home: Home) -> None:
        """``holder`` needs the service no more, which stays cached."""
        kept = self._kept.get(home)
        if kept is not None:
            kept.instance.unlock(holder)

    def _find(self, home: Home) -> Kept:
        if home not in self._kept:
            instance = Instance(*home, expected_restore_seconds=0.0)
            self._kept[home] = Kept(instance, self._make_server(*home))
        return self._kept[home]

    def _looked_at(self, home: Home) -> tuple[Kept, bool]:
        """Return a service and whether it answers at ``home``. Raises Quarantined."""
        kept = self._find(home)
        if home in self._quarantined:
            raise Quarantined(home, self._quarantined[home])
        if kept.instance.state is ServiceState.RESIDENT and not kept.server.alive:
            self._note(kept, ServiceEvent.DIED)
        return kept, kept.instance.state is ServiceState.RESIDENT

    def _in(self, units: Units, state: ServiceState) -> list[Home]:
        """Return who is in ``state`` on any of ``units``."""
        return [
            home
            for home, kept in self._kept.items()
            if kept.instance.state is state and set(units) & set(home[1])
        ]

    async def _restore(self, kept: Kept) -> None:
        """Bring a service into GPU memory; its host memory was taken."""
        self._note(kept, ServiceEvent.RESTORE_BEGAN)
        try:
            await kept.server.restore()
        except BaseException as error:
            self._note(kept, ServiceEvent.DIED)
            self._lost.add(kept.home)
            if isinstance(error, AnswersChanged):
                self._quarantined[kept.home] = str(error)
            raise
        self._note(kept, ServiceEvent.RESTORED)
        self._lost.discard(kept.home)

    async def _prepare(self, kept: Kept) -> None:
        """Put a service's copy into host memory, which was taken."""
        try:
            await kept.server.prepare()
        except BaseException:
            self.host.give_back(kept.home)
            raise
        self._note(kept, ServiceEvent.PREPARED)

    async def _evict(self, home: Home) -> None:
        kept = self._kept.get(home)
        if kept is None or kept.instance.state is not ServiceState.RESIDENT:
            return
        self._note(kept, ServiceEvent.DRAIN_BEGAN)
        try:
            event = await kept.server.evict()
        except EngineFailed:  # it cannot be put to sleep: it is ended
            await kept.server.close()
            event = ServiceEvent.DIED
        self._note(kept, event)

    async def _end(self, home: Home) -> bool:
        """End it; False when it is not there, or somebody keeps it awake."""
        kept = self._kept.get(home)
        if kept is None or kept.instance.locks:
            return False
        await kept.server.close()
        self._doomed.discard(home)
        if kept.instance.state is not ServiceState.COLD:
            self._note(kept, ServiceEvent.DIED)
        self._lost.add(home)
        return True

    def _note(self, kept: Kept, event: ServiceEvent) -> None:
        kept.note(event)
        if kept.instance.state is ServiceState.COLD:
            self.host.give_back(kept.home)


def now() -> float:
    """Return the seconds of the event loop's clock."""
    return asyncio.get_running_loop().time()
