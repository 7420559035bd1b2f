"""Replay of calls of GPU services on chunks of one size: the model that steady counts are chosen by.

It is small enough to run while the pool works. All chunks have the same size and are empty at first, calls arrive when
they did, and are served as `service_turns` serves them.

Rules
1. A free chunk takes the overdue calls first, by arrival, then those of a service that it caches, then others, each by
   turn (`service_turns`, rules 1 and 2).
2. A service that works already is restored onto one more chunk under the conditions of `service_turns`, rule 5;
   calls of a service with several seats share its chunk.
3. A restore goes to a chunk with room, else to the one whose services were used longest ago, those with waiting
   calls last.

Left out: nodes, other holders of GPUs and failures. An instant takes O(s · c) for s services on c chunks; more chunks
than calls are of no use.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from math import ceil, inf
from typing import NamedTuple

from scheduler.core.residency.service_turns import (
    LEAST_RESTORES,
    OVERDUE_ROUNDS,
    PATIENCE_RESTORES,
    SPARE_RESTORES,
)
from scheduler.core.residency.steady_memory import (
    ReplayedCall,
    ReplayedChunk,
    ReplayedPool,
    WaitingCall,
)


class ReplayedService(NamedTuple):
    """A service on chunks of one size."""

    restore_seconds: float
    #: Of each GPU.
    memory_bytes: int
    #: Calls that it takes at once.
    seats: int = 1


def empty_pool(chunks: int, memory_bytes: int, now: float = 0.0) -> ReplayedPool:
    """Return so many empty ``chunks``, each GPU with ``memory_bytes``, at ``now`` seconds."""
    return ReplayedPool(
        memory_bytes,
        [ReplayedChunk(memory_bytes) for _ in range(chunks)],
        set(range(chunks)),
        now=now,
    )


def mean_act(
    calls: Sequence[ReplayedCall],
    services: Mapping[str, ReplayedService],
    chunks: int,
    memory_bytes: int,
    *,
    warm: bool = False,
) -> float:
    """Return the mean ACT in seconds of ``calls``, rising by arrival, on so many ``chunks``.

    ``memory_bytes``: of each GPU. ``warm``: chunks have the services that they have after the same calls. inf: there is no chunk.
    """
    if not calls:
        return 0.0
    if chunks < 1:
        return inf
    pool = empty_pool(min(chunks, len(calls)), memory_bytes)
    pool.mean_seconds = sum(each.seconds for each in calls) / len(calls)
    replay = ServiceReplay(pool, services)
    for _ in range(2 if warm else 1):
        pool.now = calls[0].at_seconds
        for number, call in enumerate(calls):
            while replay.step(call.at_seconds):
                pass
            replay.add(WaitingCall(0.0, number, call))
        while replay.step(inf):
            pass
    return sum(replay.acts[number] for number in range(len(calls))) / len(calls)


class ServiceReplay:
    """The rules above, applied to a pool."""

    def __init__(self, pool: ReplayedPool, services: Mapping[str, ReplayedService]) -> None:
        self.pool = pool
        #: ACT in seconds of the calls that it started, by their number.
        self.acts: dict[int, float] = {}
        self._services = services

    def add(self, waiting: WaitingCall) -> None:
        """Let a call arrive now; `step` must have returned False for its time."""
        insort(self.pool.waiting.setdefault(waiting.call.service, []), waiting)
        self.pool.arrived = True

    def step(self, until: float) -> bool:
        """Play the next instant before ``until`` at which something happens; False: there is none, and it is ``until`` now."""
        pool = self.pool
        next_end = pool.ends[0][0] if pool.ends else inf
        now = min(pool.now, next_end) if pool.arrived else next_end
        if now >= until:
            if until < inf:
                self._pass(until)
            return False
        self._pass(max(now, pool.now))
        pool.arrived = False
        while pool.ends and pool.ends[0][0] <= now:
            self._release(heappop(pool.ends)[1])
        while pool.waiting and self._start(now):
            pass
        return True

    def _pass(self, to: float) -> None:
        """Let time pass ``to`` an instant, and count the calls that are present until then."""
        pool = self.pool
        if to > pool.now:
            pool.area += (to - pool.now) * present(pool)
            pool.now = to

    def _release(self, at: int) -> None:
        chunk = self.pool.chunks[at]
        chunk.calls -= 1
        if not chunk.calls:
            chunk.service = ""
            self.pool.free.add(at)

    def _start(self, now: float) -> bool:
        """Start the call that is served next, if one can start; return whether one did."""
        pool = self.pool
        best: tuple[tuple[bool, bool, float, int], str, int | None] | None = None
        rounds = ceil(len(pool.waiting) / len(pool.chunks))
        queue = sum(map(len, pool.waiting.values())) * pool.mean_seconds / len(pool.chunks)
        for name, line in pool.waiting.items():
            home = self._seat(name)
            if home is None:
                home = self._home(name)
                if not pool.free or (home is None and self._waits(name, len(line))):
                    continue
            head, restores = line[0], rounds * self._services[name].restore_seconds
            limit = OVERDUE_ROUNDS * (restores + max(rounds * pool.mean_seconds, queue))
            late = now - head.call.at_seconds > limit
            rank = (not late, home is None, head.number if late else head.turn, head.number)
            if best is None or rank < best[0]:
                best = rank, name, home
        if best is None:
            return False
        self._serve(now, best[1], best[2])
        return True

    def _seat(self, name: str) -> int | None:
        """Return a chunk on which ``name`` works and takes one more call."""
        most = self._services[name].seats
        if most == 1:
            return None
        chunks = self.pool.chunks
        some = (at for at, each in enumerate(chunks) if each.service == name)
        return next((at for at in some if chunks[at].calls < most), None)

    def _home(self, name: str) -> int | None:
        """Return the first free chunk that caches ``name``."""
        chunks = self.pool.chunks
        return min((at for at in self.pool.free if name in chunks[at].used), default=None)

    def _waits(self, name: str, waiting: int) -> bool:
        """Return whether calls of ``name`` wait for a chunk on which it works (rule 2)."""
        pool = self.pool
        working = sum(each.service == name for each in pool.chunks)
        if not working:
            return False
        service, idle = self._services[name], max(1, len(pool.free) + 1 - len(pool.waiting))
        seconds = waiting * pool.mean_seconds / (working * service.seats)
        worth = seconds / service.restore_seconds if service.restore_seconds > 0 else inf
        if worth > max(LEAST_RESTORES, PATIENCE_RESTORES / idle):
            return False
        return worth <= SPARE_RESTORES or not any(self._has_room(at, name) for at in pool.free)

    def _has_room(self, at: int, name: str) -> bool:
        return self.pool.chunks[at].free_bytes >= self._needed(name)

    def _needed(self, name: str) -> int:
        return min(
            self._services[name].memory_bytes or self.pool.memory_bytes, self.pool.memory_bytes
        )

    def _serve(self, now: float, name: str, home: int | None) -> None:
        pool = self.pool
        line = pool.waiting[name]
        first = line.pop(0)
        if not line:
            del pool.waiting[name]
        restore = 0.0
        if home is None:
            home, restore = self._restore(name), self._services[name].restore_seconds
        chunk = pool.chunks[home]
        pool.uses += 1
        chunk.used[name], chunk.service = pool.uses, name
        chunk.calls += 1
        pool.free.discard(home)
        end = now + restore + first.call.seconds
        self.acts[first.number] = end - first.call.at_seconds
        heappush(pool.ends, (end, home))

    def _restore(self, name: str) -> int:
        """Bring ``name`` to a free chunk, which it returns (rule 3)."""
        at = min(self.pool.free, key=lambda at: (*self._cost(at, name), at))
        chunk, needed = self.pool.chunks[at], self._needed(name)
        while chunk.free_bytes < needed:
            oldest = min(chunk.used, key=chunk.used.__getitem__)
            del chunk.used[oldest]
            chunk.free_bytes += self._needed(oldest)
        chunk.free_bytes -= needed
        return at

    def _cost(self, at: int, name: str) -> tuple[bool, int]:
        if self._has_room(at, name):
            return False, 0
        used = self.pool.chunks[at].used
        return any(each in self.pool.waiting for each in used), max(used.values())


def present(pool: ReplayedPool) -> int:
    """Return how many calls wait or are at work."""
    return len(pool.ends) + sum(map(len, pool.waiting.values()))
