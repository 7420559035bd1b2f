"""Call replay: what the mean ACT of some calls would have been on chunks of one size.

A model of a pool of GPUs, small enough to run while the pool works: all chunks have the same size and are free
at first, calls arrive when they did and are served as `service_turns` serves them.

Rules
1. A free chunk takes the overdue calls first, then those of a service that it caches, then others, each by
   arrival (`service_turns`, rules 1 and 2).
2. A service that works already is restored onto one more chunk under the conditions of `service_turns`, rule 5;
   calls of a service with several seats share its chunk.
3. A restore goes to a chunk with room, else to the one whose services were used longest ago, those with waiting
   calls last.

Left out: nodes, other holders of GPUs, failures, and hops between processes. O(n · (s + c)) for n calls of s
services on c chunks; more chunks than calls are of no use.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from math import ceil, inf
from typing import NamedTuple

from scheduler.core.residency.service_turns import (
    LEAST_RESTORES,
    OVERDUE_ROUNDS,
    PATIENCE_RESTORES,
    SPARE_RESTORES,
)


class ReplayedService(NamedTuple):
    """A service on chunks of one size."""

    restore_seconds: float
    #: Of each GPU.
    memory_bytes: int
    #: Calls that it takes at once.
    seats: int = 1


class ReplayedCall(NamedTuple):
    """A call on a chunk of that size."""

    at_seconds: float
    service: str
    seconds: float


class _Chunk:
    """A chunk: the services in its memory by last use, and the calls at work."""

    __slots__ = ("calls", "free_bytes", "service", "used")

    def __init__(self, memory_bytes: int) -> None:
        self.free_bytes = memory_bytes
        self.used: dict[str, int] = {}
        self.service = ""
        self.calls = 0


def mean_act(
    calls: Sequence[ReplayedCall],
    services: dict[str, ReplayedService],
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
    replay = _Replay(calls, services, min(chunks, len(calls)), memory_bytes)
    for _ in range(2 if warm else 1):
        replay.run()
    return sum(replay.acts) / len(calls)


class _Replay:
    """One run of the model."""

    def __init__(
        self,
        calls: Sequence[ReplayedCall],
        services: dict[str, ReplayedService],
        chunks: int,
        memory_bytes: int,
    ) -> None:
        self.acts = [0.0] * len(calls)
        self._calls = calls
        self._services = services
        self._chunks = [_Chunk(memory_bytes) for _ in range(chunks)]
        self._memory = memory_bytes
        self._mean = sum(each.seconds for each in calls) / len(calls)
        self._free = set(range(chunks))
        self._waiting: dict[str, deque[int]] = {}
        self._ends: list[tuple[float, int]] = []
        self._uses = 0

    def run(self) -> None:
        """Play all calls until the last one ends."""
        calls, arrived = self._calls, 0
        while arrived < len(calls) or self._waiting:
            due = calls[arrived].at_seconds if arrived < len(calls) else inf
            now = min(due, self._ends[0][0] if self._ends else inf)
            while self._ends and self._ends[0][0] <= now:
                self._release(heappop(self._ends)[1])
            while arrived < len(calls) and calls[arrived].at_seconds <= now:
                self._waiting.setdefault(calls[arrived].service, deque()).append(arrived)
                arrived += 1
            while self._waiting and self._start(now):
                pass
        while self._ends:
            self._release(heappop(self._ends)[1])

    def _release(self, at: int) -> None:
        chunk = self._chunks[at]
        chunk.calls -= 1
        if not chunk.calls:
            chunk.service = ""
            self._free.add(at)

    def _start(self, now: float) -> bool:
        """Start the call that is served next, if one can start; return whether one did."""
        best: tuple[tuple[bool, bool, int], str, int | None] | None = None
        rounds = ceil(len(self._waiting) / len(self._chunks))
        queue = sum(map(len, self._waiting.values())) * self._mean / len(self._chunks)
        for name, line in self._waiting.items():
            home = self._seat(name)
            if home is None:
                home = self._home(name)
                if not self._free or (home is None and self._waits(name, len(line))):
                    continue
            restores = rounds * self._services[name].restore_seconds
            limit = OVERDUE_ROUNDS * (restores + max(rounds * self._mean, queue))
            late = now - self._calls[line[0]].at_seconds > limit
            rank = (not late, home is None, line[0])
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
        some = (at for at, each in enumerate(self._chunks) if each.service == name)
        return next((at for at in some if self._chunks[at].calls < most), None)

    def _home(self, name: str) -> int | None:
        """Return the first free chunk that caches ``name``."""
        return min((at for at in self._free if name in self._chunks[at].used), default=None)

    def _waits(self, name: str, waiting: int) -> bool:
        """Return whether calls of ``name`` wait for a chunk on which it works (rule 2)."""
        working = sum(each.service == name for each in self._chunks)
        if not working:
            return False
        service, idle = self._services[name], max(1, len(self._free) + 1 - len(self._waiting))
        seconds = waiting * self._mean / (working * service.seats)
        worth = seconds / service.restore_seconds if service.restore_seconds > 0 else inf
        if worth > max(LEAST_RESTORES, PATIENCE_RESTORES / idle):
            return False
        return worth <= SPARE_RESTORES or not any(self._has_room(at, name) for at in self._free)

    def _has_room(self, at: int, name: str) -> bool:
        return self._chunks[at].free_bytes >= self._needed(name)

    def _needed(self, name: str) -> int:
        return min(self._services[name].memory_bytes or self._memory, self._memory)

    def _serve(self, now: float, name: str, home: int | None) -> None:
        line = self._waiting[name]
        number = line.popleft()
        if not line:
            del self._waiting[name]
        restore = 0.0
        if home is None:
            home, restore = self._restore(name), self._services[name].restore_seconds
        chunk, call = self._chunks[home], self._calls[number]
        self._uses += 1
        chunk.used[name], chunk.service = self._uses, name
        chunk.calls += 1
        self._free.discard(home)
        end = now + restore + call.seconds
        self.acts[number] = end - call.at_seconds
        heappush(self._ends, (end, home))

    def _restore(self, name: str) -> int:
        """Bring ``name`` to a free chunk, which it returns (rule 3)."""
        at = min(self._free, key=lambda at: (*self._cost(at, name), at))
        chunk, needed = self._chunks[at], self._needed(name)
        while chunk.free_bytes < needed:
            oldest = min(chunk.used, key=chunk.used.__getitem__)
            del chunk.used[oldest]
            chunk.free_bytes += self._needed(oldest)
        chunk.free_bytes -= needed
        return at

    def _cost(self, at: int, name: str) -> tuple[bool, int]:
        if self._has_room(at, name):
            return False, 0
        used = self._chunks[at].used
        return any(each in self._waiting for each in used), max(used.values())
