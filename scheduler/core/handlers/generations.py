"""Generations of fleets: their routes, the facts about workers, predictions, and moves of caches.

What a router of generations calls and appends (the seam of `scheduler/runtime/fleet_router/`)

1. *Submit.* `Admission.action(…, generation=GenerationSpec(…))` makes the action: kind ``call``, target ``fleet:NAME``, the trajectory
   and group of its identity, the body as a stored body. `ActionSubmitted` is appended to the inbox. The process that has the client's
   connection is its *gateway*.
2. *Wait* for its `Grant` in the journal (``node`` is None). The allocation of ``fleet:NAME#NUMBER`` has the number of the worker in
   ``units``; `CapacityView.fleets` and `SetFleet` map numbers to addresses. ``rank`` is greater for what is served first: to the
   wire with its bucket. Append `ActionStarted` (``node`` empty) before the first byte is sent to the worker.
3. *Renew* all generations that the process holds by one `LeasesRenewed`, several times in `HOLD_SECONDS`.
4. *Report* `ActionFinished` (``node`` empty) with ``usage``. Any HTTP status is ``completed``; a worker that cannot be reached is
   ``infra_failed``, with ``never_started`` if no byte was sent: it is routed again. One that breaks off is ``unknown``: routed once more
   if the generation is replay-safe, unless a part of its answer is ``delivered``. A client that leaves is an
   `ActionCancelRequested`, with the report if a worker has the request; an `Abort` (``node`` empty) ends that request as well.
5. *Judge* workers: probes append `FleetWorkersChanged` with what changed. Workers of our own, which have leases on the pool's
   nodes, are ``joined`` and ``removed`` by the same event. New weights are a fact, too.
6. *Predict* between answer and next request: `TrajectoryPredicted`. Late, missing or unusable ones do no harm.
7. *Move*: `MoveCache` asks for a transfer. Append `CacheMoved` when it begins and when it has ended; `DropCacheMove` gives it up.

Rules
1. Slots, routes and ranks are decided here; the gateway only obeys. Streams never pass the scheduler.
2. A generation that no gateway renews ends as ``unknown``, or is routed again if it is replay-safe (I3, I5).
3. Generations that wait for a fleet which is deleted end as ``infra_failed``; those that run continue.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from domain.action import QUEUED, Action, Outcome
from domain.decisions import Decision, DropCacheMove, MoveCache, SetFleet
from domain.fleet_events import (
    CacheMoved,
    FleetWorkersChanged,
    TrajectoryPinned,
    TrajectoryPredicted,
)
from domain.fleets import fleet_name, fleet_of
from domain.ids import ActionId, ResourceId, TrajectoryKey
from domain.inventory import ResourceInventory
from placement.facts import Prediction
from scheduler.core.state.completion import finish
from scheduler.core.state.generations import (
    LiveFleet,
    set_slots,
    unrouted_needs,
    worker_of,
)
from scheduler.core.state.lifecycle import (
    MAX_ATTEMPTS,
    enqueue,
    leave_queue,
    queue_at,
    requeue,
)
from scheduler.core.state.live import LiveAction
from scheduler.core.state.model import State
from scheduler.core.state.timers import TimerKind

#: Members of a `WorkerFact`.
_FACTS = ("drained", "unhealthy", "weights_version", "priorities", "moves")
#: A replay-safe generation is sent to so many workers, while they fail before the first piece of an answer.
MAX_SENT: Final = 2


def undeclared(state: State, action: Action) -> tuple[Outcome, str] | None:
    """Return why a generation can never run, if its fleet is not declared; None for other actions."""
    if action.generation is None or state.generations.of(action) is not None:
        return None
    name = "" if action.call is None else fleet_name(action.call.target)
    return Outcome.INFRA_FAILED, f"can never run: there is no fleet {name!r}"


def settle(state: State, decisions: list[Decision]) -> None:
    """Queue generations whose routes became known, start moves, and set timers; once in each pass."""
    generations = state.generations
    for name in sorted(generations.changed):
        fleet = generations.fleets.get(name)
        if fleet is None:
            continue
        for action_id, route in fleet.placement.routed(state.now):
            live = state.actions.get(ActionId(action_id))
            if live is not None and live.state is QUEUED:
                queue_at(state, live, fleet, route)
        decisions += [
            MoveCache(
                name, TrajectoryKey(each.trajectory), each.source, each.target, each.context_tokens,
                each.gain_seconds,
            )
            for each in (fleet.placement.moves(state.now) if fleet.moves_caches else ())
        ]  # fmt: skip
        due = fleet.placement.due()
        if due != fleet.rings_at:
            fleet.rings_at = due
            if due is not None:
                state.timers.set(due, TimerKind.FLEET, name)
    generations.changed.clear()


def abandon(state: State, live: LiveAction, decisions: list[Decision]) -> None:
    """End a generation whose gateway did not renew it in time, or route it again."""
    why = "the gateway that held it is silent"
    again = live.action.replay_safe and live.aborting is None and live.attempt < MAX_ATTEMPTS
    if again and undeclared(state, live.action) is None:
        requeue(state, live, why, decisions)
    else:
        finish(state, live, Outcome.UNKNOWN, decisions, detail=why)


# Events


def workers_changed(state: State, event: FleetWorkersChanged, decisions: list[Decision]) -> None:
    """Let workers of our own leave and join, if the times of their degree are known; then apply facts about workers."""
    fleet = state.generations.fleets.get(event.fleet)
    if fleet is None:
        return
    before = fleet.workers
    gone = {each.name for each in fleet.workers if each.own and each.name in event.removed}
    fleet.workers = tuple(each for each in fleet.workers if each.name not in gone)
    declared = {each.name for each in fleet.spec.workers}
    for joined in event.joined:
        if joined.name not in declared and fleet.has_times(joined.degree):
            fleet.put(replace(joined, own=True))
    for fact in event.facts:
        given = {name: getattr(fact, name) for name in _FACTS}
        known = {name: value for name, value in given.items() if value is not None}
        fleet.workers = tuple(
            replace(each, **known) if each.name == fact.name else each for each in fleet.workers
        )
    if fleet.workers != before:
        _put_in_force(state, fleet)
        decisions.append(SetFleet(fleet.name, fleet.workers))


def predicted(state: State, event: TrajectoryPredicted, decisions: list[Decision]) -> None:
    """Give a prediction to the placement of its fleet."""
    fleet = state.generations.fleets.get(event.fleet)
    if fleet is not None:
        said = Prediction(event.tokens, event.tool_seconds, event.sigma, event.source)
        fleet.placement.predict(event.trajectory, said, state.now)
        state.generations.changed.add(fleet.name)


def cache_moved(state: State, event: CacheMoved, decisions: list[Decision]) -> None:
    """Note that a transfer began or ended; one that is not wanted any more is given up."""
    fleet = state.generations.fleets.get(event.fleet)
    if fleet is None:
        return
    if event.ended:
        fleet.placement.move_ended(event.trajectory, state.now, event.tokens)
    elif not fleet.placement.move_began(event.trajectory, state.now):
        decisions.append(DropCacheMove(fleet.name, event.trajectory))
    state.generations.changed.add(fleet.name)


def pinned(state: State, event: TrajectoryPinned, decisions: list[Decision]) -> None:
    """Bind a trajectory to a worker from its next generation on, or end that."""
    fleet = state.generations.fleets.get(event.fleet)
    if fleet is None:
        return
    worker = fleet.named(event.worker)
    if worker is not None or not event.worker:
        number = None if worker is None else worker.number
        fleet.placement.pin(event.trajectory, number, state.now)
        state.generations.changed.add(fleet.name)


# Configuration


def load_fleets(state: State) -> None:
    """Open the fleets of the configuration of a new state."""
    for name, spec in state.config.fleets.items():
        fleet = state.generations.open(name, spec)
        fleet.follow(spec)
        _put_in_force(state, fleet)
    state.generations.changed.clear()


def configure(state: State, decisions: list[Decision]) -> None:
    """Follow the fleets of the configuration in force."""
    wanted, generations = state.config.fleets, state.generations
    for name in sorted(generations.fleets.keys() - wanted.keys()):
        _close(state, generations.fleets[name], decisions)
    for name, spec in wanted.items():
        fleet = generations.fleets.get(name)
        if fleet is not None and fleet.spec == spec:
            continue
        waiting: list[LiveAction] = []
        if fleet is None:
            fleet = generations.open(name, spec)
        elif fleet.decides_otherwise(spec):
            waiting = _take_back(state, fleet)
            fleet.start_over(spec)
        before = fleet.workers
        fleet.follow(spec)
        _put_in_force(state, fleet)
        for live in waiting:
            enqueue(state, live, None)
        if fleet.workers != before:
            decisions.append(SetFleet(name, fleet.workers))


def _close(state: State, fleet: LiveFleet, decisions: list[Decision]) -> None:
    """End what waits for a fleet that is deleted; what runs continues."""
    for live in _waiting(state, fleet):
        detail = f"fleet {fleet.name!r} is not declared any more"
        finish(state, live, Outcome.INFRA_FAILED, decisions, detail=detail)
    fleet.workers = ()
    _put_in_force(state, fleet)
    state.generations.close(fleet.name)
    decisions.append(SetFleet(fleet.name, ()))


def _waiting(state: State, fleet: LiveFleet) -> list[LiveAction]:
    """Return the generations of a fleet that are not granted, by arrival."""
    return [
        live
        for live in state.actions.values()
        if live.state is QUEUED and state.generations.of(live.action) is fleet
    ]


def _take_back(state: State, fleet: LiveFleet) -> list[LiveAction]:
    """Remove the waiting generations of a fleet from all queues; return them."""
    waiting = _waiting(state, fleet)
    for live in waiting:
        _unroute(state, live)
        state.generations.unrouted.pop(live.id, None)
    return waiting


def _unroute(state: State, live: LiveAction) -> None:
    leave_queue(state, live)
    live.needs = unrouted_needs(live.action)
    live.order = live.order[0], live.order[-1]


def _put_in_force(state: State, fleet: LiveFleet) -> None:
    """Let ledgers and placement follow the workers of ``fleet``, and take back what waits for unusable ones."""
    supply, wanted = state.supply, fleet.resources()
    set_slots(fleet, supply)
    for resource in wanted:
        state.released(resource)
    for resource in [each for each in supply.ledgers if _is_of(each, fleet) and each not in wanted]:
        supply.set_inventory(resource, ResourceInventory(0))
        if not supply.ledgers[resource].holders():
            supply.close_ledger(resource)
            state.resizing.forget(resource)
    usable = {each.number for each in fleet.workers if each.usable}
    for live in _waiting(state, fleet):
        worker = worker_of(live)
        if worker is not None and worker not in usable:
            _unroute(state, live)
            state.generations.unrouted[live.id] = fleet.name
    fleet.placement.set_workers(fleet.facts(), state.now)
    state.generations.changed.add(fleet.name)
    state.queues.forget_reasons()
    state.capacity_changed()


def _is_of(resource: ResourceId, fleet: LiveFleet) -> bool:
    found = fleet_of(resource)
    return found is not None and found[0] == fleet.name
