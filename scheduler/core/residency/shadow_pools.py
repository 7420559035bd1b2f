"""Shadow pools: a pool of each chunk size serves the recent calls beside the real one, and shows which size is best.

Each count that calls of a pool may get has a shadow pool (`service_replay`), which takes every call when it arrives. Over a
stretch of time the ACTs of a shadow's calls grow by the number of calls that are present, summed over time (Little).
So all shadows are compared at every arrival, those that still wait included, and nothing is replayed twice.

Rules
1. A call arrives in all shadows at the time of its arrival. Its seconds include the hop between processes for which
   the real chunk is neither restored nor at work, as measured.
2. The *regret* of a count is what it would have saved since it last became the better one, in call·seconds (CUSUM). A
   *turn* is the time in which the chunks restore all services that are in memory. The steady count changes to the one
   with the largest regret if both hold:
   - the regret exceeds the cost of the change: one turn for all calls that are present, `CHANGE` times;
   - over about the last `HORIZON` calls it would have saved more than a share that noise reaches seldom: `GAIN`, and `NOISE` divided
     by the root of the number of turns in that time; for a wider count `WIDER` times as much, since wide chunks are few
     and suffer first when the load rises. Stretches with the same services in memory are the
     independent observations, not calls: 500 calls of 0.1 s pass in ten turns.
3. A pass plays at most `PASS_WORK` steps of work; what remains is played by the next passes. At most `KEPT` calls
   wait for that; older ones are left out.
4. When nodes, services or pools change, all shadows begin again, empty.

Shadows follow from the journal and are part of the snapshot.
"""

from __future__ import annotations

from math import sqrt
from typing import Final

from scheduler.core.residency.replayed_facts import ReplayedServices, chunks_of, gpu_bytes
from scheduler.core.residency.service_replay import ServiceReplay, empty_pool, present
from scheduler.core.residency.steady_memory import (
    RecentCall,
    ReplayedCall,
    ShadowPool,
    SteadyCount,
    WaitingCall,
)
from scheduler.core.state.model import State

KEPT: Final = 1024
#: Of one pass, about 4 µs each: an instant of a shadow costs `INSTANT_WORK`, and 1 for each of its chunks.
PASS_WORK: Final = 160
INSTANT_WORK: Final = 8
#: Of one call that arrives, for each shadow.
TAKE_WORK: Final = 3
HORIZON: Final = 256
GAIN: Final = 0.02
NOISE: Final = 1.5
WIDER: Final = 1.5
CHANGE: Final = 2.0
#: How far a call may precede longer ones, in numbers of waiting calls (`lead`).
LEAD: Final = 1.5
#: The mean seconds of a call are of about so many latest ones.
MEAN_OF: Final = 64
#: Weight of the newest hop.
_NEWEST: Final = 0.3


def arrive(here: SteadyCount, call: RecentCall) -> None:
    """Note a submitted call; `advance` lets it arrive in the shadows."""
    here.recent.append(call)
    del here.recent[:-KEPT]
    here.calls += 1
    here.mean_seconds += (call.base_seconds - here.mean_seconds) / min(here.calls, MEAN_OF)


def lead(waiting: int, seconds: float, mean_seconds: float) -> float:
    """Return how many arrivals earlier than it arrived a call is served: the more, the shorter it is; below 0: later.

    0 for a call of mean length, or without waiting calls; at most `LEAD` · ``waiting`` either way. So a call is overtaken by no
    call that arrives more than a bounded number of arrivals after it.
    """
    total = seconds + mean_seconds
    return LEAD * waiting * (mean_seconds - seconds) / total if total > 0 else 0.0


def learn_hop(here: SteadyCount, seconds: float) -> None:
    """Add the seconds that a call held its chunk beside its restore and its execution."""
    known = here.hop_seconds
    here.hop_seconds = known + _NEWEST * (max(0.0, seconds) - known) if known else max(0.0, seconds)


def forget(here: SteadyCount) -> None:
    """Let all shadows begin again (rule 4)."""
    here.shadows.clear()
    here.seconds = 0.0


def advance(state: State, pool: str, here: SteadyCount) -> int | None:
    """Play the shadows of ``pool`` on, up to `PASS_WORK`; return another count where that became the better one."""
    work, taken = 0, 0
    replays = _replays(state, here)
    for call in here.recent:
        if not {each.count for each in here.shadows} >= set(call.counts):
            _open(state, pool, here, call)
            replays = _replays(state, here)
        for replay in replays:
            while work < PASS_WORK and replay.step(call.at):
                work += INSTANT_WORK + len(replay.pool.chunks)
        if work >= PASS_WORK:
            break
        _compare(here, call.at)
        _take(here, here.calls - len(here.recent) + taken, call, replays)
        taken, work = taken + 1, work + TAKE_WORK * len(replays)
    del here.recent[:taken]
    return _better(state, here)


def _replays(state: State, here: SteadyCount) -> list[ServiceReplay]:
    """Return the rules of `service_replay` for each shadow."""
    return [ServiceReplay(each.pool, ReplayedServices(state, each.count)) for each in here.shadows]


def _open(state: State, pool: str, here: SteadyCount, call: RecentCall) -> None:
    """Give each count of ``call`` a shadow; all begin again, so that they serve the same calls."""
    counts = {*(each.count for each in here.shadows), *call.counts}
    forget(here)
    here.compared_at = call.at
    memory = gpu_bytes(state, pool)
    for count in sorted(counts):
        empty = empty_pool(chunks_of(state, pool, count), memory, call.at)
        here.shadows.append(ShadowPool(count, empty))


def _take(here: SteadyCount, number: int, call: RecentCall, replays: list[ServiceReplay]) -> None:
    """Let ``call`` arrive in all shadows that have chunks (rule 1)."""
    for shadow, replay in zip(here.shadows, replays, strict=True):
        pool, seconds = shadow.pool, call.seconds(shadow.count)
        if not pool.chunks:
            continue
        pool.mean_seconds += (seconds - pool.mean_seconds) / min(number + 1, MEAN_OF)
        waiting = sum(map(len, pool.waiting.values()))
        turn = number - lead(waiting, seconds, pool.mean_seconds)
        replayed = ReplayedCall(call.at, call.service, seconds + here.hop_seconds)
        replay.add(WaitingCall(turn, number, replayed))


def _steady(here: SteadyCount) -> ShadowPool | None:
    """Return the shadow of the steady count."""
    return next((each for each in here.shadows if each.count == here.count), None)


def _compare(here: SteadyCount, now: float) -> None:
    """Add what happened since the last call arrived to regrets and sums; all shadows are at ``now``."""
    steady, kept = _steady(here), 1.0 - 1.0 / HORIZON
    area = steady.pool.area if steady is not None else 0.0
    for each in here.shadows:
        each.regret = max(0.0, each.regret + area - each.pool.area) if steady is not None else 0.0
        each.spent = kept * each.spent + each.pool.area
        each.pool.area = 0.0
    here.seconds = kept * here.seconds + now - here.compared_at
    here.compared_at = now


def _better(state: State, here: SteadyCount) -> int | None:
    """Return the count with the largest regret, if a change to it pays (rule 2)."""
    steady, feasible = _steady(here), [each for each in here.shadows if each.pool.chunks]
    best = min(feasible, key=lambda each: (-each.regret, each.count), default=None)
    if steady is None or best is None or best is steady or here.seconds <= 0.0:
        return None
    chunks = len(best.pool.chunks)
    turn = _restores(state, steady, best.count) / chunks
    if best.regret <= CHANGE * turn * max(chunks, present(steady.pool)):
        return None
    margin = GAIN + NOISE * sqrt(turn / here.seconds)
    if best.count > steady.count:
        margin *= WIDER
    if best.spent > (1.0 - margin) * steady.spent:
        return None
    for each in here.shadows:
        each.regret = 0.0
    return best.count


def _restores(state: State, steady: ShadowPool, count: int) -> float:
    """Return the seconds of restores to ``count`` of what is in memory now."""
    services = ReplayedServices(state, count)
    names = {name for chunk in steady.pool.chunks for name in chunk.used}
    return sum(services[name].restore_seconds for name in sorted(names))
