"""Service runner: restores services onto the chunks of one node, and evicts them.

The ledger decides the placements and evictions; this module executes them. Rules

1. `hold` returns a server that answers, locked for a holder until `release`.
2. One task at a time works on a GPU (`gpu_locks`): a later one waits for the restores and evictions
   before it. A request for a service that answers waits for none of them.
3. A restore starts only after the memory it needs is *measured* free on each GPU (I11). When it is
   not free in time, sleeping services there are ended, since they may hold memory; when that does not
   help, `MemoryNotFreed` names the GPUs, which are then quarantined.
4. A cancelled holder releases its lock; its restore goes on, and the service stays cached.
5. A dead server is noticed at the next request for it, and restored again.
6. Memory on the node is the truth. When a service is resident that the ledger does not know of (its
   holder gave up the restore), it is evicted if it has no lock, so that memory gets free.
7. A service that left memory without an eviction of the ledger is *lost*, until it is reported.
8. `prefetch` uses free memory only, and is cancelled by a request for another service on its GPUs.
   A wake-up is not cancelled, since stopping it would lose the copy; nor is a restore that its holder
   gave up. Either is ended for the tasks behind it once it is *late* (`ServiceInstance.late`).
9. A service that does not answer as before (I12) is ended, and not restored at that home again until
   it is declared otherwise (`forget`).
10. No service starts without room in host memory (`host_memory`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from domain.services import ServiceState
from managers.gpu.engines import EngineFailed, Server
from managers.gpu.gpu_locks import GpuLocks
from managers.gpu.host_memory import Home, HostMemory, NoRoom, Units
from managers.gpu.memory_reclaim import MemoryReclaimer
from managers.gpu.residents_store import ResidentsStore, now

#: Checks for late restores within the patience.
_CHECKS: Final = 4


@dataclass(eq=False)
class _RestoreRequest:
    """A request for a service at a home."""

    holder: str
    home: Home
    memory_bytes: int
    evicted: Sequence[Home]
    #: The holder still waits for it.
    wanted: bool = True

    @property
    def touched(self) -> set[int]:
        """The GPUs on which it restores or evicts a service."""
        return {unit for _, units in (self.home, *self.evicted) for unit in units}


class ServiceRunner:
    """The services of one node, and the tasks that restore and evict them."""

    def __init__(
        self,
        make_server: Callable[[str, Units], Server],
        free_bytes: Callable[[int], int],
        patience_seconds: float = 10.0,
        host: HostMemory | None = None,
    ) -> None:
        """``free_bytes`` measures one GPU; it is polled for at most ``patience_seconds``."""
        self.host = host or HostMemory(None, lambda _: 0)
        self.store = ResidentsStore(make_server, self.host)
        self._locks = GpuLocks()
        self._memory = MemoryReclaimer(self.store, self._locks, free_bytes, patience_seconds)
        #: Tasks, and the request of each; None for a prefetch.
        self._tasks: dict[asyncio.Task[Any], _RestoreRequest | None] = {}
        self._prefetches: dict[Home, asyncio.Task[None]] = {}
        #: Prefetches that wake a sleeping service.
        self._waking: set[Home] = set()
        self._closed = False

    async def hold(
        self, holder: str, home: Home, memory_bytes: int, evicted: Sequence[Home] = ()
    ) -> Server:
        """Restore a service at ``home``, after evicting ``evicted``, and lock it for ``holder``.

        ``memory_bytes`` is what it needs of each GPU. Raises EngineFailed, MemoryNotFreed, and
        Conflict when a service to evict is locked.
        """
        if (answering := self.store.answering(home)) is not None:
            answering.instance.lock(holder)
            self.host.take(home)
            return answering.server
        request = _RestoreRequest(holder, home, memory_bytes, evicted)
        task = asyncio.ensure_future(self._restore(request))
        self._tasks[task] = request
        task.add_done_callback(self._tasks.pop)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # At once: the next task on these GPUs may begin before the restore is reaped.
            request.wanted = False
            self.release(holder, home)
            task.add_done_callback(_retrieve_error)
            raise

    def release(self, holder: str, home: Home) -> None:
        """Release the lock of ``holder``; the service stays cached."""
        self.store.unlock(holder, home)

    async def prefetch(self, home: Home, memory_bytes: int, *, awake: bool = True) -> None:
        """Restore a service ahead of a request (rule 8); not ``awake``: only its copy in host memory.

        Raises EngineFailed, NoRoom among others.
        """
        if self._closed:
            raise EngineFailed("the node worker is shutting down")
        if home in self._prefetches:
            return
        task = asyncio.ensure_future(self._prefetch(home, memory_bytes, awake=awake))
        self._prefetches[home], self._tasks[task] = task, None
        task.add_done_callback(self._tasks.pop)
        task.add_done_callback(lambda _: self._prefetches.pop(home))
        await asyncio.wait({task})
        if task.cancelled():
            raise NoRoom("a request for another service took its GPUs")
        task.result()

    async def clear(self, units: Units, memory_bytes: int) -> None:
        """Evict all services from ``units``, and wait until ``memory_bytes`` of each are free.

        Raises MemoryNotFreed, and Conflict when a service there is locked.
        """
        async with self._preempting(units):
            for home in self.store.in_state(units, ServiceState.RESIDENT):
                await self.store.evict(home)
            await self._memory.wait_free(units, memory_bytes)

    async def evict(self, home: Home) -> None:
        """Evict a service, unless it is locked."""
        async with self._locks.hold(home[1]):
            service = self.store.get(home)
            if service is not None and service.instance.evictable:
                await self.store.evict(home)

    async def discard(self, home: Home, *, later: bool = False) -> None:
        """End a service, unless it is locked; the record of its answers stays (I12).

        ``later``: end a locked one at the next request for it that finds it unlocked.
        """
        async with self._locks.hold(home[1]):
            if not await self.store.end(home) and later:
                self.store.doom(home)

    async def forget(self, home: Home) -> None:
        """End a service whose declaration changed, and drop what is known of it."""
        async with self._locks.hold(home[1]):
            await self.store.forget(home)

    async def close(self) -> None:
        """Cancel all tasks and end all services."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.store.close()

    async def _restore(self, request: _RestoreRequest) -> Server:
        home = request.home
        async with self._preempting(request.touched, home):
            if self.store.is_doomed(home):
                await self.store.end(home)
            service, resident = self.store.inspect(home)
            if not resident:
                self.host.check(home)
                for other in request.evicted:
                    await self.store.evict(other)
                await self._memory.evict_unknown(home[1], request.memory_bytes)
                await self._memory.wait_free(home[1], request.memory_bytes)
                await self._memory.free_host(home, request.touched)
            self.host.take(home)
            if request.wanted:
                service.instance.lock(request.holder)
            try:
                if not resident:
                    await self.store.restore(service)
            except BaseException:
                service.instance.unlock(request.holder)
                raise
            return service.server

    async def _prefetch(self, home: Home, memory_bytes: int, *, awake: bool) -> None:
        async with self._locks.hold(home[1]):
            service, resident = self.store.inspect(home)
            state = service.instance.state
            if resident or not (awake or state is ServiceState.COLD):
                return
            if not self._memory.is_free(home[1], memory_bytes):
                raise NoRoom("the memory that it needs is not free")
            self.host.check(home)
            self.host.take(home)
            if not awake:
                await self.store.prepare(service)
                return
            if state is ServiceState.HOST_RESIDENT:
                self._waking.add(home)
            try:
                await self.store.restore(service)
            finally:
                self._waking.discard(home)

    @contextlib.asynccontextmanager
    async def _preempting(
        self, units: Iterable[int], home: Home | None = None
    ) -> AsyncIterator[None]:
        """Hold ``units``, cancelling prefetches of other services there (rule 8)."""
        units = set(units)
        for other, task in self._prefetches.items():
            if other != home and other not in self._waking and units & set(other[1]):
                _cancel(task)
        ending = None
        if not self._locks.idle(units):
            ending = asyncio.ensure_future(self._end_late(units, home))
        async with contextlib.AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self._locks.hold(units))
            finally:
                if ending is not None:
                    ending.cancel()
            yield

    async def _end_late(self, units: set[int], home: Home | None) -> None:
        """Cancel late and unwanted restores on ``units``, until this task is cancelled (rule 8)."""
        while True:
            await asyncio.sleep(self._memory.patience_seconds / _CHECKS)
            requests = [(request, task) for task, request in self._tasks.items() if request]
            wanted = {request.home for request, _ in requests if request.wanted}
            tasks = [*self._prefetches.items(), *((each.home, task) for each, task in requests)]
            for other, task in tasks:
                service = self.store.get(other)
                if other in wanted or other == home or not units & set(other[1]):
                    continue
                if service is not None and service.instance.late(
                    now(), self._memory.patience_seconds
                ):
                    _cancel(task)


def _cancel(task: asyncio.Task[Any]) -> None:
    """Cancel a task once: a second cancel would break off its clean-up."""
    if not task.cancelling():
        task.cancel()


def _retrieve_error(done: asyncio.Task[Server]) -> None:
    """Mark the error of an abandoned restore as retrieved; the instance shows it."""
    if not done.cancelled():
        done.exception()
