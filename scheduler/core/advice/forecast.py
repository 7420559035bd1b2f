"""Forecasts: when a waiting action starts, the effect of extra units, and the latest decisions.

A forecast runs the heap of Algorithm 2 (paper Appendix A) up to the action: each action before it, in
order, takes the earliest predicted end and pushes its own. It has the bias of that estimate, that a
completion frees one slot whatever it held, and ignores later arrivals. Queues longer than `LONGEST`
have no forecast.

Extra units. The queue is simulated twice, as it is and with more units of the binding resource: each
action in turn takes its minimum as soon as that is free, and returns it after its expected duration.
This simulation counts units, since one more unit is the question. Only the difference of the two runs
is reported, subtracted from the forecast, so that a page shows one prediction. Grants above the
minimum are not simulated. No effect is reported for actions that wait for time (quotas, deferrals),
for a node or for their turn; nor for memory, which a trajectory holds for an unpredictable time (see
`scheduler.core.advice.status`).
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush, heapreplace
from itertools import islice

from domain.advice import EvictionTrial, ExtraUnitsEffect, PolicyDecision
from domain.ids import ResourceId
from domain.resources import MILLI, units, units_of
from scheduler.core.advice.facts import Forecast, WaitFacts
from scheduler.core.policies.group import TriedEviction
from scheduler.core.state.durations import expected_seconds, residual_seconds
from scheduler.core.state.live import LiveAction
from scheduler.core.state.model import Arranged, State
from scheduler.core.state.queues import WaitQueue

#: Most waiting actions on one resource for a forecast, which costs O(n log n).
LONGEST = 2000


def forecast(state: State, live: LiveAction, resource: str | None) -> Forecast:
    """Return the forecast of ``live``, which waits for ``resource``."""
    needs = dict((*live.needs.in_cluster, *live.needs.on_node))
    counts = units_of({name: n for name, n in needs.items() if name != "memory"})
    if resource is None or resource not in state.supply.ledgers:
        return Forecast(None, counts)
    return Forecast(_starts_in(state, live, ResourceId(resource)), counts)


def _starts_in(state: State, live: LiveAction, resource: ResourceId) -> float | None:
    deferral = state.queues.deferrals.get(resource)
    if deferral is not None and live.order == deferral.first:
        return max(0.0, deferral.until - state.now)
    lines = [queue for queue in state.queues.active.values() if takes_of(state, queue, resource)]
    ends = [residual_seconds(state, other) for other in state.holding(resource)]
    if not ends or sum(queue.size for queue in lines) > LONGEST:
        return None
    heapify(ends)
    ahead = [other for queue in lines for other in queue.in_order() if other.order < live.order]
    for other in sorted(ahead, key=lambda one: one.order):
        heapreplace(ends, ends[0] + expected_seconds(state, other))
    return ends[0]


def takes_of(state: State, queue: WaitQueue, resource: ResourceId) -> bool:
    """Say whether actions of ``queue`` take units of ``resource``."""
    return wanted_of(state, queue, resource) > 0


def wanted_of(state: State, queue: WaitQueue, resource: ResourceId) -> int:
    """Return how much of ``resource`` each action of ``queue`` takes, in milli-units or bytes."""
    key = queue.key
    node = resource.partition(":")[2]
    home = key.node or queue.sticky_node
    if (
        home is None
        and node in state.supply.nodes
        and state.supply.nodes[node].inventory.pool == key.pool
    ):
        home = node
    needs = queue.in_cluster + (queue.on_node(home) if home else [])
    return sum(amount for name, amount in needs if name == resource)


def recent_decisions(state: State, limit: int) -> list[PolicyDecision]:
    """Return decisions about groups with a choice, latest first."""
    return [_decision(arranged) for arranged in islice(reversed(state.arranged), limit)]


def _decision(arranged: Arranged) -> PolicyDecision:
    arrangement = arranged.arrangement
    going = len(arrangement.units)
    trials = [_trial(trial, arranged.actions) for trial in arrangement.trials]
    return PolicyDecision(
        at_seconds=arranged.at,
        resource=arranged.resource,
        policy=arranged.policy,
        candidates=list(arranged.candidates),
        units={
            name: units(amount)
            for name, amount in zip(arranged.candidates, arrangement.units, strict=False)
        },
        evicted=list(arranged.candidates[going:]),
        waiting_behind=arranged.actions - len(arranged.candidates),
        objective_seconds=arrangement.objective_seconds,
        trials=trials,
        no_choice=arranged.no_choice,
    )


def _trial(trial: TriedEviction, actions: int) -> EvictionTrial:
    found = trial.objective_seconds
    return EvictionTrial(trial.evicted, found, None if found is None else found / max(1, actions))


#: Reasons that more units remove.
_SHORT = frozenset({"short_of", "behind"})

#: An amount, and for how many seconds it is held: from now, or from when it is taken.
Hold = tuple[float, int]


def extra_units_effect(
    state: State, live: LiveAction, why: WaitFacts, starts_in_seconds: float | None
) -> ExtraUnitsEffect | None:
    """Return the effect of more units of ``why.resource`` on ``live``, whose forecast start is given."""
    resource = ResourceId(why.resource or "")
    if starts_in_seconds is None or why.code not in _SHORT or resource not in state.supply.ledgers:
        return None
    if resource in state.supply.paced or live.queue is None:
        return None
    wanted = wanted_of(state, state.queues.active[live.queue], resource)
    ahead = taken_before(state, live, resource)
    if not wanted or ahead is None:
        return None
    free = _free(state, resource, wanted)
    ends = [
        (residual_seconds(state, other), _held(other, resource))
        for other in state.holding(resource)
    ]
    more = _step(resource, wanted)
    as_it_is, with_more = (
        seconds_until_free(free + extra, ends, ahead, wanted) for extra in (0, more)
    )
    if as_it_is is None or with_more is None:
        return None
    sooner = min(as_it_is - with_more, starts_in_seconds)
    start = starts_in_seconds - sooner
    missing = max(0, wanted + sum(amount for _, amount in ahead) - free)
    return ExtraUnitsEffect(
        units=units(more),
        sooner_seconds=round(sooner, 3),
        starts_in_seconds=round(start, 3),
        ends_in_seconds=round(start + expected_seconds(state, live), 3),
        missing=units(missing),
    )


def seconds_until_free(
    free: int, running: Iterable[Hold], ahead: Iterable[Hold], wanted: int
) -> float | None:
    """Return the seconds until ``wanted`` is free for an action behind ``ahead``; None: never.

    ``running`` lists amounts that are held with their remaining time, ``ahead`` amounts that the
    actions before it take, in order, with their durations. Amounts are of one resource, in any unit.
    """
    ends = list(running)
    heapify(ends)
    now = 0.0
    for seconds, amount in (*ahead, (0.0, wanted)):
        while free < amount:
            if not ends:
                return None
            now, freed = heappop(ends)
            free += freed
        free -= amount
        heappush(ends, (now + seconds, amount))
    return now


def taken_before(state: State, live: LiveAction, resource: ResourceId) -> list[Hold] | None:
    """Return what actions before ``live`` take, in order; None for queues longer than `LONGEST`."""
    lines = [(queue, wanted_of(state, queue, resource)) for queue in state.queues.active.values()]
    lines = [(queue, wanted) for queue, wanted in lines if wanted]
    if sum(queue.size for queue, _ in lines) > LONGEST:
        return None
    before = [
        (other.order, expected_seconds(state, other), wanted)
        for queue, wanted in lines
        for other in queue.in_order()
        if other.order < live.order
    ]
    return [(seconds, wanted) for _, seconds, wanted in sorted(before)]


def _held(live: LiveAction, resource: ResourceId) -> int:
    return sum(held.amount for held in live.allocations if held.resource == resource)


def _free(state: State, resource: ResourceId, wanted: int) -> int:
    """Return what is free; 0 when no free chunk of GPUs is as large as ``wanted``."""
    ledger = state.supply.ledgers[resource]
    in_pieces = ledger.free >= wanted and not ledger.fits((wanted,))
    return 0 if in_pieces else ledger.free


def _step(resource: ResourceId, wanted: int) -> int:
    """Return the extra units to simulate: one, or a chunk of GPUs, which a single one may not complete."""
    return wanted if resource.startswith("gpu:") else MILLI
