"""Bringing services onto the chunks of one node, and taking them off again.

The ledger has decided who goes where and who leaves; here it is done, on the node. Rules

1. `hold` returns a server that answers, for a holder that keeps it awake until `let_go`.
2. Work on a GPU is done by one at a time (`gates`): whoever comes to it later waits for the restores
   and evictions before. Who is wanted where it answers already waits for nobody.
3. Nothing is restored before the memory it needs is *measured* free on each GPU (I11). When that
   does not come true in time, whoever said that it sleeps there is ended, for it may have lied; when
   that does not help either, `MemoryNotFreed` names the GPUs: they are to be quarantined.
4. Who is cancelled gives its lock back; its restore goes on and ends cached.
5. A service that died is noticed when it is wanted next, and restored again.
6. What is in memory here is the truth. Where the ledger knows less than is there (a restore that
   its holder gave up), whoever nobody keeps awake leaves too, so that memory gets free.
7. What left without being told to is remembered as *lost* until the ledger is told.
8. What comes for nobody (`come`) takes memory that is free at once, and gives way to whoever comes to its
   GPUs for another service. One that wakes goes on, since stopping it would lose its copy; and so does
   a restore that its holder gave up. But only while it is not *late* (`Instance.late`): then it is
   ended for whoever waits behind it.
9. A service that does not answer as before (I12) is ended, and not restored at that home again until
   it is declared otherwise: `forget`.
10. Nothing is started for which there is no host memory (`host`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from domain.services import ServiceState
from managers.gpu.engines import EngineFailed, Server
from managers.gpu.host_memory import Home, HostMemory, NoRoom, Units
from managers.gpu.room import MemoryNotFreed, Room
from managers.gpu.shelf import Kept, Quarantined, now

__all__ = ["Home", "Keeper", "MemoryNotFreed", "NoRoom", "Quarantined", "Units"]

#: How often it is looked, within the patience, whether what is in the way is late.
_LOOKS: Final = 4


@dataclass(eq=False)
class _Order:
    """What somebody asked for."""

    holder: str
    home: Home
    memory_bytes: int
    evicted: Sequence[Home]
    #: Whoever asked still waits for it.
    wanted: bool = True

    @property
    def touched(self) -> set[int]:
        """The GPUs on which something is to be done."""
        return {unit for _, units in (self.home, *self.evicted) for unit in units}


class Keeper(Room):
    """The services of one node, and whose turn it is on which GPU."""

    def __init__(
        self,
        make_server: Callable[[str, Units], Server],
        free_bytes: Callable[[int], int],
        patience_seconds: float = 10.0,
        host: HostMemory | None = None,
    ) -> None:
        """``free_bytes`` measures one GPU; it is asked for at most ``patience_seconds``."""
        host = host or HostMemory(None, lambda _: 0)
        super().__init__(make_server, free_bytes, patience_seconds, host)
        #: What is being done: for somebody's order, else for nobody.
        self._works: dict[asyncio.Task[Any], _Order | None] = {}
        #: What comes for nobody, and whether it wakes.
        self._coming: dict[Home, asyncio.Task[None]] = {}
        self._waking: set[Home] = set()
        self._closed = False

    async def hold(
        self, holder: str, home: Home, memory_bytes: int, evicted: Sequence[Home] = ()
    ) -> Server:
        """Bring a service home, after those of ``evicted`` have left; see the rules.

        ``memory_bytes`` is what it needs of each GPU. Raises EngineFailed, MemoryNotFreed, and
        Conflict when one that should leave is kept awake.
        """
        if (there := self._answering(home)) is not None:
            there.instance.lock(holder)
            self.host.take(home)
            return there.server
        order = _Order(holder, home, memory_bytes, evicted)
        work = asyncio.ensure_future(self._bring(order))
        self._works[work] = order
        work.add_done_callback(self._works.pop)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            # At once: whoever comes to these GPUs next may do so before the restore is reaped.
            order.wanted = False
            self.let_go(holder, home)
            work.add_done_callback(_look_away)
            raise

    async def come(self, home: Home, memory_bytes: int, *, awake: bool = True) -> None:
        """Bring a service home for nobody (rule 8), or its copy into host memory alone.

        Raises EngineFailed, NoRoom among others.
        """
        if self._closed:
            raise EngineFailed("the node worker ends")
        if home in self._coming:
            return
        work = asyncio.ensure_future(self._come(home, memory_bytes, awake=awake))
        self._coming[home], self._works[work] = work, None
        work.add_done_callback(self._works.pop)
        work.add_done_callback(lambda _: self._coming.pop(home))
        await asyncio.wait({work})
        if work.cancelled():
            raise NoRoom("it made room for somebody else")
        work.result()

    async def clear(self, units: Units, memory_bytes: int) -> None:
        """Let everybody leave ``units``; see that so much of each is free.

        Raises MemoryNotFreed, and Conflict when somebody there is kept awake.
        """
        async with self._first(units):
            for home in self._in(units, ServiceState.RESIDENT):
                await self._evict(home)
            await self._measured_free(units, memory_bytes)

    async def evict(self, home: Home) -> None:
        """Let a service leave, unless somebody keeps it awake."""
        async with self._gates.alone(home[1]):
            kept = self._kept.get(home)
            if kept is not None and kept.instance.evictable:
                await self._evict(home)

    async def discard(self, home: Home, *, later: bool = False) -> None:
        """End a service, unless somebody keeps it awake; what it answered is remembered (I12).

        ``later``: else as soon as it is wanted next and nobody does.
        """
        async with self._gates.alone(home[1]):
            if not await self._end(home) and later and home in self._kept:
                self._doomed.add(home)

    async def forget(self, home: Home) -> None:
        """End a service that is declared otherwise now, with all that is known of it."""
        async with self._gates.alone(home[1]):
            if await self._end(home):
                del self._kept[home]
                self._quarantined.pop(home, None)

    async def close(self) -> None:
        """End all services, and whatever is being done with them."""
        self._closed = True
        for work in list(self._works):
            work.cancel()
        await asyncio.gather(*self._works, return_exceptions=True)
        for home, kept in self._kept.items():
            await kept.server.close()
            self.host.give_back(home)
        self._kept.clear()

    def _answering(self, home: Home) -> Kept | None:
        """Return a service that may be asked at once, whatever else is done on its GPUs."""
        kept = self._kept.get(home)
        if kept is None or home in self._doomed or home in self._quarantined:
            return None
        resident = kept.instance.state is ServiceState.RESIDENT and kept.server.alive
        return kept if resident else None

    async def _bring(self, order: _Order) -> Server:
        home = order.home
        async with self._first(order.touched, home):
            if home in self._doomed:
                await self._end(home)
            kept, there = self._looked_at(home)
            if not there:
                self.host.check(home)
                for other in order.evicted:
                    await self._evict(other)
                await self._make_room(home[1], order.memory_bytes)
                await self._measured_free(home[1], order.memory_bytes)
                await self._make_host_room(home, order.touched)
            self.host.take(home)
            if order.wanted:
                kept.instance.lock(order.holder)
            try:
                if not there:
                    await self._restore(kept)
            except BaseException:
                kept.instance.unlock(order.holder)
                raise
            return kept.server

    async def _come(self, home: Home, memory_bytes: int, *, awake: bool) -> None:
        async with self._gates.alone(home[1]):
            kept, there = self._looked_at(home)
            state = kept.instance.state
            if there or not (awake or state is ServiceState.COLD):
                return
            if any(self._free_bytes(unit) < memory_bytes for unit in home[1]):
                raise NoRoom("the memory that it needs is not free")
            self.host.check(home)
            self.host.take(home)
            if not awake:
                await self._prepare(kept)
                return
            if state is ServiceState.HOST_RESIDENT:
                self._waking.add(home)
            try:
                await self._restore(kept)
            finally:
                self._waking.discard(home)

    @contextlib.asynccontextmanager
    async def _first(self, units: Iterable[int], home: Home | None = None) -> AsyncIterator[None]:
        """Be alone on ``units``, and go before what nobody waits for there (rule 8)."""
        units = set(units)
        for other, work in self._coming.items():
            if other != home and other not in self._waking and units & set(other[1]):
                _stop(work)
        ending = None
        if not self._gates.idle(units):
            ending = asyncio.ensure_future(self._end_late(units, home))
        async with contextlib.AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self._gates.alone(units))
            finally:
                if ending is not None:
                    ending.cancel()
            yield

    async def _end_late(self, units: set[int], home: Home | None) -> None:
        """End what is late on ``units`` and wanted by nobody, until this is cancelled (rule 8)."""
        while True:
            await asyncio.sleep(self._patience_seconds / _LOOKS)
            wanted = {order.home for order in self._works.values() if order and order.wanted}
            works = [(other, work) for other, work in self._coming.items()]
            works += [(order.home, work) for work, order in self._works.items() if order]
            for other, work in works:
                kept = self._kept.get(other)
                if other in wanted or other == home or not units & set(other[1]) or kept is None:
                    continue
                if kept.instance.late(now(), self._patience_seconds):
                    _stop(work)


def _stop(work: asyncio.Task[Any]) -> None:
    """Cancel it, once: a second time would break off its cleaning up."""
    if not work.cancelling():
        work.cancel()


def _look_away(done: asyncio.Task[Server]) -> None:
    """Take note of an error that nobody waits for any more; the instance shows it."""
    if not done.cancelled():
        done.exception()
