"""Steady counts: the one count of GPUs that the elastic calls of a pool get.

Algorithm 1 weighs each call alone: the restore to another count against what the call gains. It does not see that
a service which lives on chunks of one size is found there by the calls that follow, and that each further size of
chunk evicts services whose calls then need restores. So a choice for each call is worse than any good fixed count.

Rules
1. All calls of a pool that have a profile get one count, or the largest of theirs below it: the *steady count*.
2. It begins with the count of at least the efficiency `EFFICIENT` at which most declared services stay in memory
   together; of several, the largest.
3. From then on shadow pools, one for each count, serve the same calls; the steady count changes when another one would
   have saved more than the change costs (`shadow_pools`).
4. Waiting calls get the new count at once: calls of several counts in one queue would block each other.
5. Shorter calls precede longer ones, within a bound (`head_start`).

The memory of a pool follows from the journal and is part of the snapshot.

Earlier versions. Pools without `PoolConfig.steady_counts` have no steady counts. Those without `PoolConfig.shadow_pools` choose
by batches instead of rules 3 and 5: at every `EVERY`-th call, the last `KEPT` calls are replayed on chunks of each size
(`mean_act`), with the restores as measured, and the count with the least mean ACT becomes the steady one if that gains
`GAIN` and a margin for noise (`NOISE`). Their journals give the same decisions.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt
from typing import Final

from domain.action import Action
from domain.events import ActionFinished
from domain.resources import UnitSet
from domain.services import service_name
from scheduler.core.cycle.pool_policies import policy_of
from scheduler.core.residency import shadow_pools
from scheduler.core.residency.replayed_facts import (
    ReplayedServices,
    chunks_of,
    gpu_bytes,
    memory_bytes,
)
from scheduler.core.residency.service_replay import mean_act
from scheduler.core.residency.service_turns import KIND
from scheduler.core.residency.steady_memory import RecentCall, ReplayedCall, SteadyCount
from scheduler.core.state.durations import base_seconds
from scheduler.core.state.lifecycle import refresh_needs
from scheduler.core.state.live import LiveAction
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


def has_shadows(state: State, pool: str) -> bool:
    """Return whether shadow pools choose the steady count of ``pool``, and shorter calls precede longer ones."""
    config = state.config.pools.get(pool)
    return config is not None and config.shadow_pools and is_steady(state, pool)


def follow(state: State, action: Action, pool: str) -> None:
    """Count a submitted call; without shadows, choose again when it is time to."""
    call = _recent(state, action)
    shadows, known = has_shadows(state, pool), state.residency.memory.steady
    is_known = base_seconds(state, action) is not None
    if call is None or not (is_known or shadows):
        return
    here = known.get(pool)
    if here is None:
        here = known[pool] = SteadyCount(_first(state, pool, call))
    if shadows:
        if is_known:
            shadow_pools.arrive(here, call)
        return
    here.recent.append(call)
    del here.recent[:-KEPT]
    here.calls += 1
    if here.calls in (FIRST, 2 * FIRST, 4 * FIRST) or here.calls % EVERY == 0:
        _choose(state, pool, here)


def begin_cycle(state: State) -> None:
    """Play the shadows of all pools on, and change counts (rules 3 and 4)."""
    for pool, here in state.residency.memory.steady.items():
        if not here.recent or not has_shadows(state, pool):
            continue
        better = shadow_pools.advance(state, pool, here)
        if better is not None:
            here.count = better
            refresh_needs(state)


def head_start(state: State, live: LiveAction) -> float:
    """Return how many arrivals earlier than it arrived a call is served (rule 5); 0 for other actions."""
    here = state.residency.memory.steady.get(live.pool)
    action = live.action
    if here is None or action.call is None or not has_shadows(state, live.pool):
        return 0.0
    seconds = base_seconds(state, action)
    if live.needs.key != KIND or seconds is None:
        return 0.0
    queues = state.queues.active.items()
    waiting = sum(each.size for key, each in queues if key.pool == live.pool and key.needs.resident)
    return shadow_pools.lead(waiting, seconds, here.mean_seconds)


def learn(state: State, event: ActionFinished, live: LiveAction) -> None:
    """Learn the hops between processes from the end of a call that was restored first."""
    here = state.residency.memory.steady.get(live.pool)
    restore = event.chunk.restore_seconds if event.chunk else None
    if here is None or restore is None or live.granted_at is None:
        return
    held = state.now - live.granted_at
    shadow_pools.learn_hop(here, held - restore - event.execution_seconds)


def forget(state: State) -> None:
    """Let all shadows begin again: nodes, services or pools have changed."""
    for here in state.residency.memory.steady.values():
        shadow_pools.forget(here)


def count_of(state: State, action: Action, pool: str, counts: UnitSet) -> int | None:
    """Return which of ``counts`` a call gets; None where the policy decides about each action."""
    here = state.residency.memory.steady.get(pool)
    if here is None or action.elasticity is None or not is_steady(state, pool):
        return None
    return max((each for each in counts if each <= here.count), default=counts[0])


def _recent(state: State, action: Action) -> RecentCall | None:
    """Return ``action`` as it is kept, with 0 seconds where its duration is unknown; None for one that has no choice."""
    if action.call is None or action.elasticity is None or action.key not in (None, KIND):
        return None
    name, counts = service_name(action.call.target), action.cost.get(KIND, ())
    if name is None or len(counts) < 2:
        return None
    seconds = base_seconds(state, action) or 0.0
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
    calls = [ReplayedCall(each.at, each.service, each.seconds(steady)) for each in here.recent]
    counts = {each.service: each.count(steady) for each in reversed(here.recent)}
    services = {name: ReplayedServices(state, count)[name] for name, count in counts.items()}
    chunks, memory = chunks_of(state, pool, steady), gpu_bytes(state, pool)
    return mean_act(calls, services, chunks, memory, warm=True)


def _first(state: State, pool: str, call: RecentCall) -> int:
    """Return the efficient count at which most services stay in memory; of several the largest (rule 2)."""
    efficient = [each for each in call.counts if call.elasticity.efficiency(each) >= EFFICIENT]
    memory, declared = gpu_bytes(state, pool), state.config.services

    def together(count: int) -> int:
        needed = max((memory_bytes(state, name, count) for name in declared), default=0)
        on_each = memory // needed if 0 < needed <= memory else 1
        return min(len(declared), chunks_of(state, pool, count) * on_each)

    return max(efficient or call.counts[:1], key=lambda count: (together(count), count))
