"""Steady counts: the one count of GPUs that the elastic calls of a pool get, chosen by replays of recent calls.

Algorithm 1 weighs each call alone: the restore to another count against what the call gains. It does not see that
a service which lives on chunks of one size is found there by the calls that follow, and that each further size of
chunk evicts services whose calls then need restores. So a choice for each call is worse than any good fixed count.

Rules
1. All calls of a pool that have a profile get one count, or the largest of theirs below it: the *steady count*.
2. Before `FIRST` calls it is the count of at least the efficiency `EFFICIENT` at which most declared services stay
   in memory together; of several, the largest.
3. From then on, at every `EVERY`-th call, the last `KEPT` calls are replayed on chunks of each size
   (`mean_act`), with the restores as measured. The count with the least mean ACT becomes the steady one if that
   gains `GAIN` and a margin for noise (`NOISE`).
4. Waiting calls get the new count at once: calls of several counts in one queue would block each other.

The memory of a pool follows from the journal and is part of the snapshot. Configurations of earlier versions have no
steady counts (`PoolConfig.steady_counts`): their journals give the same decisions.

The replay is a model of a pool of GPUs, small enough to run while the pool works: all chunks have the same size and are free
at first, calls arrive when they did and are served as `service_turns` serves them.

Rules of the replay
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
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from math import ceil, inf, sqrt
from typing import Final, NamedTuple

from domain.action import Action
from domain.chunks import amount_at, level_of
from domain.ids import node_resource
from domain.resources import MILLI, UnitSet
from domain.services import service_name
from scheduler.core.cycle.pool_policies import policy_of
from scheduler.core.residency.policy import RecentCall, SteadyCount
from scheduler.core.residency.service_turns import (
    KIND,
    LEAST_RESTORES,
    OVERDUE_ROUNDS,
    PATIENCE_RESTORES,
    SPARE_RESTORES,
    seats_of,
    times_of,
)
from scheduler.core.state.durations import base_seconds
from scheduler.core.state.lifecycle import refresh_needs
from scheduler.core.state.model import State

KEPT: Final = 1024
FIRST: Final = 96
EVERY: Final = 256
#: Least relative gain of another count: `GAIN`, and `NOISE` divided by the root of the number of calls. A change
#: restores all services, which a pool near its capacity makes up for late.
GAIN: Final = 0.05
NOISE: Final = 3.0
#: Least E(m) of the count to begin with: too wide a count overloads the pool, too narrow a one delays each call.
EFFICIENT: Final = 0.8


def is_steady(state: State, pool: str) -> bool:
    """Return whether the calls of ``pool`` have a steady count."""
    config = state.config.pools.get(pool)
    return config is not None and config.steady_counts and policy_of(state, pool).caps_grants


def follow(state: State, action: Action, pool: str) -> None:
    """Count a submitted call, and choose again when it is time to (rule 3)."""
    call = _recent(state, action)
    if call is None:
        return
    known = state.residency.memory.steady
    here = known.get(pool)
    if here is None:
        here = known[pool] = SteadyCount(_first(state, pool, call))
    here.recent.append(call)
    del here.recent[:-KEPT]
    here.calls += 1
    if here.calls in (FIRST, 2 * FIRST, 4 * FIRST) or here.calls % EVERY == 0:
        _choose(state, pool, here)


def count_of(state: State, action: Action, pool: str, counts: UnitSet) -> int | None:
    """Return which of ``counts`` a call gets; None where the policy decides about each action."""
    here = state.residency.memory.steady.get(pool)
    if here is None or action.elasticity is None or not is_steady(state, pool):
        return None
    return max((each for each in counts if each <= here.count), default=counts[0])


def _recent(state: State, action: Action) -> RecentCall | None:
    """Return ``action`` as it is kept; None for one that has no choice, or whose duration is unknown."""
    if action.call is None or action.elasticity is None or action.key not in (None, KIND):
        return None
    name, counts = service_name(action.call.target), action.cost.get(KIND, ())
    seconds = base_seconds(state, action)
    if name is None or len(counts) < 2 or seconds is None:
        return None
    return RecentCall(state.now, name, seconds, counts, action.elasticity)


def _choose(state: State, pool: str, here: SteadyCount) -> None:
    """Replay the recent calls under each count, and keep the best (rule 3)."""
    acts = {count: _replayed(state, pool, here, count) for count in _counts(here.recent)}
    best = min(acts, key=lambda count: (acts[count], count))
    present = acts.get(here.count)
    least = max(0.0, 1.0 - GAIN - NOISE / sqrt(len(here.recent)))
    if best != here.count and (present is None or acts[best] <= least * present):
        here.count = best
        refresh_needs(state)


def _counts(recent: Iterable[RecentCall]) -> list[int]:
    return sorted({count for each in recent for count in each.counts})


def _replayed(state: State, pool: str, here: SteadyCount, steady: int) -> float:
    """Return the mean ACT in seconds of the recent calls under a ``steady`` count."""
    calls = []
    services: dict[str, ReplayedService] = {}
    for each in here.recent:
        count = each.count(steady)
        seconds = each.elasticity.duration_seconds(each.base_seconds, count)
        calls.append(ReplayedCall(each.at, each.service, seconds))
        if each.service not in services:
            restore = _restore_seconds(state, each.service, count)
            needed = _memory_bytes(state, each.service, count)
            services[each.service] = ReplayedService(restore, needed, seats_of(state, each.service))
    chunks, memory = _chunks(state, pool, steady), _memory(state, pool)
    return mean_act(calls, services, chunks, memory, warm=True)


def _restore_seconds(state: State, service: str, count: int) -> float:
    """Return the seconds of a restore to ``count`` milli-units: measured, else by the nearest measured count.

    A restore fills each GPU with its part of the service, all of them at once, so it takes time as the declared
    memory of one GPU.
    """
    known = times_of(state, service)
    measured = dict(known.by_count)
    if not measured:
        return known.restore_seconds
    nearest = min(measured, key=lambda each: (max(each, count) / min(each, count), each))
    here, there = (_memory_bytes(state, service, each) for each in (count, nearest))
    return measured[nearest] * (here / there if here and there else 1.0)


def _first(state: State, pool: str, call: RecentCall) -> int:
    """Return the efficient count at which most services stay in memory; of several the largest (rule 2)."""
    efficient = [each for each in call.counts if call.elasticity.efficiency(each) >= EFFICIENT]
    memory, declared = _memory(state, pool), state.config.services

    def together(count: int) -> int:
        needed = max((_memory_bytes(state, name, count) for name in declared), default=0)
        on_each = memory // needed if 0 < needed <= memory else 1
        return min(len(declared), _chunks(state, pool, count) * on_each)

    return max(efficient or call.counts[:1], key=lambda count: (together(count), count))


def _chunks(state: State, pool: str, count: int) -> int:
    """Return how many chunks of ``count`` milli-units the usable nodes of ``pool`` have."""
    level, found = level_of(count), 0
    for node in state.supply.nodes_of(pool):
        ledger = state.supply.resident.get(node_resource(KIND, node.name))
        if ledger is not None and level is not None and state.supply.usable(node):
            found += ledger.capacity // amount_at(level)
    return found


def _memory(state: State, pool: str) -> int:
    """Return the memory of a GPU of ``pool``: the least of its nodes; 1 where none is declared."""
    have = (node.inventory.resources.get(KIND) for node in state.supply.nodes_of(pool))
    return min((each.memory_bytes for each in have if each and each.memory_bytes), default=1)


def _memory_bytes(state: State, service: str, count: int) -> int:
    """Return what ``service`` needs of each of ``count`` milli-GPUs; 0: all of it."""
    declared = state.config.services.get(service)
    return 0 if declared is None else declared.memory_bytes(-(-count // MILLI))


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
