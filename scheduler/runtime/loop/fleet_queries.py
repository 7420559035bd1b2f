"""Answers to queries of fleets: workers with their loads, trajectories, routes, moves, and what an arrangement would change.

They are made in the scheduler's loop. Without trajectories a query looks at workers, unrouted generations and moves alone; with
them it looks once at each trajectory of its fleets, with engines once at each live action. An arrangement is as costly as that of a batch
of `placement.fleet_questions.MAX_PLANNED` trajectories at most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from heapq import nlargest
from itertools import islice

from contract.fleet_status import (
    GIVEN_UP,
    IN_TOOL,
    PLANNED,
    QUEUED,
    RUNNING,
    RUNS,
    WAITS,
    CacheMoveStatus,
    FleetPlanStatus,
    FleetsStatus,
    FleetStatus,
    FleetTrajectoryStatus,
    FleetWorkerStatus,
    PlannedPlacement,
    RouteStatus,
    WorkerEngineStatus,
)
from domain.action import ActionState
from domain.fleet_events import FleetsQueried
from domain.fleets import fleet_of, worker_resource
from domain.resources import MILLI
from placement.explanation import RouteExplanation
from placement.facts import TrajectoryFacts
from placement.fleet_questions import PLAN_SENTENCES, PlannedChange
from scheduler.core.advice.generations import without_worker
from scheduler.core.advice.status import explain
from scheduler.core.state.generations import LiveFleet
from scheduler.core.state.model import State
from scheduler.runtime.rendering import wait_details


def fleets_status(state: State, query: FleetsQueried) -> FleetsStatus:
    """Return what ``query`` selects, by name."""
    fleets = state.generations.fleets
    names = [query.fleet] if query.fleet else sorted(fleets)
    found = FleetsStatus([_fleet(state, fleets[name], query) for name in names if name in fleets])
    if query.engines:
        found.engines = list(_engines(state))
        found.left_over = dict(_left_over(state))
    return found


def _engines(state: State) -> Iterator[WorkerEngineStatus]:
    """Yield the actions that run engines; it looks at every live action."""
    for live in state.actions.values():
        process = live.action.engine
        if process is None:
            continue
        status = explain(state, live.id) if live.state is ActionState.QUEUED else None
        details = None if status is None else wait_details(status)
        since = live.started_at or live.granted_at or live.submitted_at
        yield WorkerEngineStatus(
            live.id,
            live.action.project,
            process,
            max(live.action.cost.get("gpu", (0,))) // MILLI,
            live.state,
            live.node or "",
            tuple(unit for each in live.allocations for unit in each.units),
            max(0.0, state.now - since),
            "" if details is None else details.reason,
            ending=live.aborting is not None,
        )


def _left_over(state: State) -> Counter[str]:
    """Count the generations that run on workers which their fleets do not have any more."""
    counted: Counter[str] = Counter()
    for resource, ledger in state.supply.ledgers.items():
        worker = fleet_of(resource)
        if worker is None:
            continue
        fleet = state.generations.fleets.get(worker[0])
        if fleet is None or fleet.numbered(worker[1]) is None:
            held = sum(each.amount for each in ledger.holders().values()) // MILLI
            counted.update({worker[0]: held} if held else {})
    return counted


def _fleet(state: State, fleet: LiveFleet, query: FleetsQueried) -> FleetStatus:
    placement = fleet.placement
    found = FleetStatus(
        fleet.name,
        fleet.spec.engine,
        fleet.spec.policy,
        fleet.spec.transfer,
        workers=list(_workers(state, fleet)),
        unrouted=_unrouted(state, fleet.name),
        live=len(placement.facts.trajectories),
        moves=list(_moves(state, fleet, query)),
        refused=dict(placement.refused),
        correlation=placement.facts.correlation(),
        generation_seconds=placement.facts.generation_seconds(),
    )
    if query.limit > 0:
        seen = [each for each in placement.facts.trajectories.values() if _sees(query, each.key)]
        longest = nlargest(query.limit, seen, key=_length)
        found.trajectories = [_trajectory(fleet, each) for each in longest]
        found.seen = len(seen)
        found.finished = placement.facts.first_predictions()
    if query.trajectory and _sees(query, query.trajectory):
        why = placement.why(query.trajectory)
        found.route = None if why is None else _route(why, state.now)
    if query.plan:
        found.plan = _plan(fleet, query)
    return found


def _length(each: TrajectoryFacts) -> tuple[float, int]:
    """Return what trajectories are sorted by: tokens in all as predicted, at least those sampled; then arrival."""
    return max(each.total_tokens, each.sampled_tokens), -each.order


def _sees(query: FleetsQueried, key: str) -> bool:
    return query.projects is None or key.partition("/")[0] in query.projects


def _workers(state: State, fleet: LiveFleet) -> Iterator[FleetWorkerStatus]:
    for each in fleet.workers:
        ledger = state.supply.ledgers[worker_resource(fleet.name, each.number)]
        running = sum(held.amount for held in ledger.holders().values()) // MILLI
        load = fleet.placement.facts.load(each.number)
        routed, caches, tokens = (
            (0, 0, 0)
            if load is None
            else (load.generations, load.trajectories, load.context_tokens)
        )
        yield FleetWorkerStatus(each, running, max(0, routed - running), caches, tokens)


def _unrouted(state: State, name: str) -> dict[str, int]:
    """Count the generations of a fleet that have no worker by the code of their wait."""
    waiting = [each for each, fleet in state.generations.unrouted.items() if fleet == name]
    return dict(Counter(without_worker(state, state.actions[each]).code for each in waiting))


def _moves(state: State, fleet: LiveFleet, query: FleetsQueried) -> Iterator[CacheMoveStatus]:
    for each in fleet.placement.transfers:
        move, began = each.move, each.began_at
        if not _sees(query, move.trajectory):
            continue
        standing = PLANNED if began is None else RUNNING
        yield CacheMoveStatus(
            move.trajectory,
            move.source,
            move.target,
            GIVEN_UP if each.void else standing,
            move.context_tokens,
            move.gain_seconds,
            max(0.0, state.now - (each.planned_at if began is None else began)),
        )


def _trajectory(fleet: LiveFleet, facts: TrajectoryFacts) -> FleetTrajectoryStatus:
    why = fleet.placement.why(facts.key)
    return FleetTrajectoryStatus(
        facts.key,
        _state(fleet, facts.key, why),
        steps=facts.steps,
        sampled_tokens=facts.sampled_tokens,
        context_tokens=facts.context_tokens,
        worker=facts.worker,
        predicted_tokens=None if facts.prediction is None else facts.total_tokens,
        pinned=facts.pinned,
    )


def _state(fleet: LiveFleet, key: str, why: RouteExplanation | None) -> str:
    if key in fleet.placement.facts.in_tools or why is None:
        return IN_TOOL
    if why.runs:
        return RUNS
    return WAITS if why.waits else QUEUED


def _plan(fleet: LiveFleet, query: FleetsQueried) -> FleetPlanStatus:
    plan, trajectories = fleet.placement.plan(), fleet.placement.facts.trajectories
    seen = (each for each in plan.changes if _sees(query, each.trajectory))
    return FleetPlanStatus(
        plan.code,
        PLAN_SENTENCES[plan.code],
        plan.trajectories,
        len(plan.changes),
        plan.predicted,
        plan.kept_seconds,
        plan.planned_seconds,
        [
            _placement(each, trajectories[each.trajectory])
            for each in islice(seen, max(0, query.plan_limit))
        ],
    )


def _placement(change: PlannedChange, facts: TrajectoryFacts) -> PlannedPlacement:
    said = facts.prediction
    left = None if said is None else max(0.0, facts.total_tokens - facts.sampled_tokens)
    return PlannedPlacement(facts.key, change.worker, change.planned, facts.context_tokens, left)


def _route(why: RouteExplanation, now: float) -> RouteStatus:
    route, said = why.route, why.prediction
    return RouteStatus(
        why.trajectory,
        why.code,
        why.sentence,
        worker=None if route is None else route.worker,
        former_worker=why.former_worker,
        rank=None if route is None else route.rank,
        pin=why.pin,
        age_seconds=None if why.routed_at is None else max(0.0, now - why.routed_at),
        waits=bool(why.waits),
        waits_seconds=None if why.waits_until is None else max(0.0, why.waits_until - now),
        generations=why.generations,
        least_generations=why.least_generations,
        context_tokens=why.context_tokens,
        cached_tokens=why.cached_tokens,
        tokens_left=None if said is None else said.tokens,
        tool_seconds_left=None if said is None else said.tool_seconds,
        predictor="" if said is None else said.source,
        correlation=why.correlation,
    )
