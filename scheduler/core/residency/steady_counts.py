"""Steady counts: the one count of GPUs that the elastic calls of a pool get, chosen by replays of recent calls.

Algorithm 1 weighs each call alone: the restore to another count against what the call gains. It does not see that
a service which lives on chunks of one size is found there by the calls that follow, and that each further size of
chunk evicts services whose calls then need restores. So a choice for each call is worse than any good fixed count.

Rules
1. All calls of a pool that have a profile get one count, or the largest of theirs below it: the *steady count*.
2. Before `FIRST` calls it is the count at which most declared services stay in memory together; of several, the
   largest.
3. From then on, at every `EVERY`-th call, the last `KEPT` calls are replayed on chunks of each size
   (`call_replay`), with the restores as measured. The count with the least mean ACT becomes the steady one if that
   is at most `BETTER` times the present one's.
4. Waiting calls get the new count at once: calls of several counts in one queue would block each other.

The memory of a pool follows from the journal and is part of the snapshot. Configurations of earlier versions have no
steady counts (`PoolConfig.steady_counts`): their journals give the same decisions.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt
from typing import Final

from domain.action import Action
from domain.chunks import amount_at, level_of
from domain.ids import node_resource
from domain.resources import MILLI, UnitSet
from domain.services import service_name
from scheduler.core.cycle.pool_policies import policy_of
from scheduler.core.residency.call_replay import ReplayedCall, ReplayedService, mean_act
from scheduler.core.residency.recent_calls import RecentCall, SteadyCount
from scheduler.core.residency.service_turns import KIND, seats_of, times_of
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
