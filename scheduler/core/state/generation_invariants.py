"""Invariants of fleets and generations, recomputed from the actions; see `state.invariants`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from domain.action import QUEUED
from domain.resources import MILLI
from scheduler.core.state.generations import LiveFleet, is_unrouted, worker_of
from scheduler.core.state.model import State
from scheduler.core.state.timers import TimerKind


def generations_agree(state: State) -> Iterator[str]:
    """Each generation is unrouted, queued at a usable worker, or held; each fleet rings when one of them is due."""
    generations = state.generations
    unrouted = {live.id for live in state.actions.values() if is_unrouted(live)}
    if unrouted != generations.unrouted.keys():
        yield f"unrouted are {sorted(unrouted)}, recorded are {sorted(generations.unrouted)}"
    for action_id in unrouted:
        if state.generations.of(state.actions[action_id].action) is None:
            yield f"{action_id} waits for a fleet that is not declared"
    if generations.changed:
        yield f"fleets {sorted(generations.changed)} changed and were not settled"
    for fleet in generations.fleets.values():
        yield from _workers_agree(state, fleet)
        yield from _rings(state, fleet)


def _workers_agree(state: State, fleet: LiveFleet) -> Iterator[str]:
    numbers = [each.number for each in fleet.workers]
    if sorted(set(numbers)) != numbers or any(n >= fleet.next_number for n in numbers):
        yield f"fleet {fleet.name} has workers {numbers} below {fleet.next_number}"
    for resource, worker in fleet.resources().items():
        slots = worker.slots * MILLI if worker.usable else 0
        if state.supply.ledgers[resource].capacity != slots:
            yield f"{resource} has another capacity than its worker"
    usable = {each.number for each in fleet.workers if each.usable}
    at_worker: Counter[int] = Counter()
    for live in state.actions.values():
        number = worker_of(live)
        if number is None or state.generations.of(live.action) is not fleet:
            continue
        at_worker[number] += 1
        if live.state is QUEUED and number not in usable:
            yield f"{live.id} waits for worker {number}, which gets no further generation"
    for load in fleet.placement.facts.loads:
        # Another policy does not know the generations that ran before it.
        if load.generations > at_worker[load.facts.number]:
            yield f"placement counts {load.generations} on worker {load.facts.number} of {fleet.name}"


def _rings(state: State, fleet: LiveFleet) -> Iterator[str]:
    """I8: what waits for a batch or a transfer is routed when it is due."""
    due = fleet.placement.due()
    rings = {
        (at, subject) for at, kind, subject in state.timers.pending() if kind is TimerKind.FLEET
    }
    if due is not None and due > state.now and (due, fleet.name) not in rings:
        yield f"generations of fleet {fleet.name} are due at {due} and no timer is set"
