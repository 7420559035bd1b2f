"""Bringing services onto the chunks of one node, and taking them off again.

The ledger has decided who goes where and who leaves; here it is done, on the node. Rules

1. `hold` returns a server that answers, for a holder that keeps it awake until `let_go`.
2. Work on a GPU is done by one at a time: whoever comes to it later waits for the restores and
   evictions before. GPUs are locked in the order of their numbers, so nobody waits in a circle.
3. Nothing is restored before the memory it needs is *measured* free on each GPU (I11). When that
   does not come true in time, whoever said that it sleeps there is ended, for it may have lied; when
   that does not help either, `MemoryNotFreed` names the GPUs: they are to be quarantined.
4. Who is cancelled gives its lock back; its restore goes on and ends cached.
5. A service that died is noticed when it is wanted next, and restored again.
6. What is in memory here is the truth. Where the ledger knows less than is there (a restore that
   its holder gave up), whoever nobody keeps awake leaves too, so that memory gets free.
7. What left without being told to is remembered as *lost* until the ledger is told.
8. A service that does not answer as before (I12) is ended, and not restored at that home again until
   it is declared otherwise: `forget`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from domain.errors import CapacityError
from domain.services import ServiceEvent, ServiceState
from managers.gpu.engines import AnswersChanged, EngineFailed, Server
from managers.gpu.instance import Instance

Units = tuple[int, ...]
#: Where a service is: its name and its GPUs.
Home = tuple[str, Units]
_PAUSE_SECONDS: Final = 0.02
_TAKING_MEMORY: Final = frozenset(
    {ServiceState.RESTORING, ServiceState.RESIDENT, ServiceState.DRAINING}
)


class MemoryNotFreed(CapacityError):
    """GPU memory that was to be free is still in use."""

    def __init__(self, units: Units) -> None:
        super().__init__(f"memory of GPUs {units} was not free in time")
        self.units = units


class Quarantined(EngineFailed):
    """It did not answer as before on these GPUs, and is not brought there again."""

    def __init__(self, home: Home, why: str) -> None:
        super().__init__(f"it is in quarantine on GPUs {home[1]}: {why}")


class _Kept(NamedTuple):
    instance: Instance
    server: Server


@dataclass
class _Order:
    """What somebody asked for."""

    holder: str
    home: Home
    memory_bytes: int
    evicted: Sequence[Home]
    #: Whoever asked still waits for it.
    wanted: bool = True


class Keeper:
    """The services of one node, wherever in their lives they are."""

    def __init__(
        self,
        make_server: Callable[[str, Units], Server],
        free_bytes: Callable[[int], int],
        patience_seconds: float = 10.0,
    ) -> None:
        """``free_bytes`` measures one GPU; it is asked for at most ``patience_seconds``."""
        self._make_server = make_server
        self._free_bytes = free_bytes
        self._patience_seconds = patience_seconds
        self._kept: dict[Home, _Kept] = {}
        self._gates: dict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._works: set[asyncio.Task[Server]] = set()
        self._lost: set[Home] = set()
        self._quarantined: dict[Home, str] = {}

    def instances(self) -> list[Instance]:
        """Return every service that was ever brought here."""
        return [kept.instance for kept in self._kept.values()]

    async def hold(
        self, holder: str, home: Home, memory_bytes: int, evicted: Sequence[Home] = ()
    ) -> Server:
        """Bring a service home, after those of ``evicted`` have left; see the rules.

        ``memory_bytes`` is what it needs of each GPU. Raises EngineFailed, MemoryNotFreed, and
        Conflict when one that should leave is kept awake.
        """
        order = _Order(holder, home, memory_bytes, evicted)
        work = asyncio.ensure_future(self._bring(order))
        self._works.add(work)
        work.add_done_callback(self._works.discard)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            # At once: whoever comes to these GPUs next may do so before the restore is reaped.
            order.wanted = False
            self.let_go(holder, home)
            work.add_done_callback(_look_away)
            raise

    def let_go(self, holder: str, home: Home) -> None:
        """``holder`` needs the service no more, which stays cached."""
        kept = self._kept.get(home)
        if kept is not None:
            kept.instance.unlock(holder)

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

    async def clear(self, units: Units, memory_bytes: int) -> None:
        """Let everybody leave ``units``; see that so much of each is free.

        Raises MemoryNotFreed, and Conflict when somebody there is kept awake.
        """
        async with self._alone(units):
            for home in self._on(units):
                await self._evict(home)
            await self._measured_free(units, memory_bytes)

    async def evict(self, home: Home) -> None:
        """Let a service leave, unless somebody keeps it awake."""
        async with self._alone(home[1]):
            kept = self._kept.get(home)
            if kept is not None and kept.instance.evictable:
                await self._evict(home)

    async def discard(self, home: Home) -> None:
        """End a service, unless somebody keeps it awake; what it answered is remembered (I12)."""
        async with self._alone(home[1]):
            await self._end(home)

    async def forget(self, home: Home) -> None:
        """End a service that is declared otherwise now, with all that is known of it."""
        async with self._alone(home[1]):
            if await self._end(home):
                del self._kept[home]
                self._quarantined.pop(home, None)

    async def close(self) -> None:
        """End all services, and whatever is being done with them."""
        for work in list(self._works):
            work.cancel()
        await asyncio.gather(*self._works, return_exceptions=True)
        for kept in self._kept.values():
            await kept.server.close()
        self._kept.clear()

    async def _bring(self, order: _Order) -> Server:
        home = order.home
        touched = {unit for _, units in (home, *order.evicted) for unit in units}
        async with self._alone(touched):
            kept = self._find(home)
            if home in self._quarantined:
                raise Quarantined(home, self._quarantined[home])
            if kept.instance.state is ServiceState.RESIDENT and not kept.server.alive:
                kept.instance.handle(ServiceEvent.DIED, _now())
            there = kept.instance.state is ServiceState.RESIDENT
            if not there:
                for other in order.evicted:
                    await self._evict(other)
                await self._make_room(home[1], order.memory_bytes)
                await self._measured_free(home[1], order.memory_bytes)
            if order.wanted:
                kept.instance.lock(order.holder)
            try:
                if not there:
                    await self._restore(kept)
            except BaseException:
                kept.instance.unlock(order.holder)
                raise
            return kept.server

    async def _restore(self, kept: _Kept) -> None:
        kept.instance.handle(ServiceEvent.RESTORE_BEGAN, _now())
        home = kept.instance.service, kept.instance.units
        try:
            await kept.server.restore()
        except BaseException as error:
            kept.instance.handle(ServiceEvent.DIED, _now())
            self._lost.add(home)
            if isinstance(error, AnswersChanged):
                self._quarantined[home] = str(error)
            raise
        kept.instance.handle(ServiceEvent.RESTORED, _now())
        self._lost.discard(home)

    async def _end(self, home: Home) -> bool:
        """End it; False when it is not there, or somebody keeps it awake."""
        kept = self._kept.get(home)
        if kept is None or kept.instance.locks:
            return False
        await kept.server.close()
        if kept.instance.state is not ServiceState.COLD:
            kept.instance.handle(ServiceEvent.DIED, _now())
        self._lost.add(home)
        return True

    async def _evict(self, home: Home) -> None:
        kept = self._kept.get(home)
        if kept is None or kept.instance.state is not ServiceState.RESIDENT:
            return
        kept.instance.handle(ServiceEvent.DRAIN_BEGAN, _now())
        try:
            event = await kept.server.evict()
        except EngineFailed:  # it cannot be put to sleep: it is ended
            await kept.server.close()
            event = ServiceEvent.DIED
        kept.instance.handle(event, _now())

    def _on(self, units: Units) -> list[Home]:
        """Return who is resident on any of ``units``."""
        return [
            home
            for home, kept in self._kept.items()
            if kept.instance.state is ServiceState.RESIDENT and set(units) & set(home[1])
        ]

    async def _make_room(self, units: Units, memory_bytes: int) -> None:
        """Let those leave of whom the ledger does not know, as far as it takes (rule 6)."""
        for home in self._on(units):
            if all(self._free_bytes(unit) >= memory_bytes for unit in units):
                return
            if self._kept[home].instance.evictable:
                await self._evict(home)
                self._lost.add(home)

    async def _measured_free(self, units: Units, memory_bytes: int) -> None:
        full = await self._full(units, memory_bytes)
        for home in self._asleep_on(full):
            await self._end(home)
            full = await self._full(units, memory_bytes)
            if not full:
                break
        if full:
            raise MemoryNotFreed(full)

    async def _full(self, units: Units, memory_bytes: int) -> Units:
        """Return which of ``units`` have less than that free, even after waiting."""
        until = _now() + self._patience_seconds
        while True:
            full = tuple(unit for unit in units if self._free_bytes(unit) < memory_bytes)
            if not full or _now() >= until:
                return full
            await asyncio.sleep(_PAUSE_SECONDS)

    def _asleep_on(self, units: Units) -> list[Home]:
        """Return who keeps a copy in host memory, and should hold nothing of any of ``units``."""
        return [
            home
            for home, kept in self._kept.items()
            if kept.instance.state is ServiceState.HOST_RESIDENT and set(units) & set(home[1])
        ]

    def _find(self, home: Home) -> _Kept:
        if home not in self._kept:
            service, units = home
            instance = Instance(service, units, expected_restore_seconds=0.0)
            self._kept[home] = _Kept(instance, self._make_server(service, units))
        return self._kept[home]

    @contextlib.asynccontextmanager
    async def _alone(self, units: Iterable[int]) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            for unit in sorted(units):
                await stack.enter_async_context(self._gates[unit])
            yield


def _look_away(done: asyncio.Task[Server]) -> None:
    """Take note of an error that nobody waits for any more; the instance shows it."""
    if not done.cancelled():
        done.exception()


def _now() -> float:
    return asyncio.get_running_loop().time()
