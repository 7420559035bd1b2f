"""Waits of generations: for a route, or for a slot of their worker (I14)."""

from __future__ import annotations

from domain.fleets import fleet_of
from domain.ids import ResourceId
from placement.explanation import BATCH_GATHERS, NO_USABLE_WORKER, TRANSFER_RUNS
from scheduler.core.advice.facts import WaitFacts, WorkerQueue
from scheduler.core.advice.forecast import takes_of
from scheduler.core.state.live import LiveAction
from scheduler.core.state.model import State

#: Reason of placement → code of the wait.
_CODES = {
    BATCH_GATHERS: "batch_gathers",
    TRANSFER_RUNS: "cache_moves",
    NO_USABLE_WORKER: "no_worker",
}


def without_worker(state: State, live: LiveAction) -> WaitFacts:
    """Return why a generation has no worker yet."""
    fleet = state.generations.of(live.action)
    if fleet is None:
        return WaitFacts("no_worker", subject=state.generations.unrouted[live.id])
    why = fleet.placement.why(live.action.trajectory_key or "")
    code = NO_USABLE_WORKER if why is None or not why.waits else why.waits
    return WaitFacts(_CODES.get(code, "no_worker"), subject=fleet.name)


def at_worker(state: State, live: LiveAction, resource: ResourceId) -> WorkerQueue | None:
    """Return what is before a generation at its worker; None: its fleet is not declared any more."""
    found, fleet = fleet_of(resource), state.generations.of(live.action)
    worker = None if found is None or fleet is None else fleet.numbered(found[1])
    if worker is None or fleet is None:
        return None
    ahead = [
        other
        for queue in state.queues.active.values()
        if takes_of(state, queue, resource)
        for other in queue.in_order()
        if other.order < live.order
    ]
    longer = sum(
        other.order[0] == live.order[0] and other.order[1] < live.order[1] for other in ahead
    )
    return WorkerQueue(fleet.name, worker.name, worker.slots, len(ahead), longer)
