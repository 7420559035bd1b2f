"""Forecast of the start of a waiting action, and the latest decisions of policies.

A forecast runs the heap of Algorithm 2 (paper Appendix A) up to the action: each action before it, in
order, takes the earliest predicted end and pushes its own. It has the bias of that estimate, that a
completion frees one slot whatever it held, and ignores later arrivals. Queues longer than `LONGEST`
have no forecast.
"""

from __future__ import annotations

from heapq import heapify, heapreplace
from itertools import islice

from domain.advice import EvictionTrial, PolicyDecision
from domain.ids import ResourceId
from domain.resources import units, units_of
from scheduler.core.advice.facts import Forecast
from scheduler.core.policies.group import Trial
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
    if resource is None or resource not in state.fleet.ledgers:
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
        and node in state.fleet.nodes
        and state.fleet.nodes[node].inventory.pool == key.pool
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
    )


def _trial(trial: Trial, actions: int) -> EvictionTrial:
    found = trial.objective_seconds
    return EvictionTrial(trial.evicted, found, None if found is None else found / max(1, actions))
