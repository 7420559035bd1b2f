"""Answers to queries of live rollouts, workers and backends.

They are made in the scheduler's loop: a query looks at all live rollouts a fixed number of times, however many it shows, and a
query of one rollout that runs looks at that one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from heapq import nsmallest

from contract.responses import rfc3339
from contract.rollout_status import (
    BackendStatus,
    RolloutsStatus,
    RolloutStatus,
    RolloutWorkerStatus,
    no_worker_has,
)
from domain.backends import llm_resource
from domain.resources import MILLI
from domain.rollout_events import RolloutsQueried
from domain.rollouts import RolloutId, RolloutState
from scheduler.core.state.model import State
from scheduler.core.state.rollouts import LiveRollout


def rollouts_status(
    state: State, query: RolloutsQueried, wall_offset: float, journal_id: str
) -> RolloutsStatus:
    """Return what ``query`` selects; ``wall_offset`` turns journal time into wall clock."""
    if _counts_alone(query):
        return RolloutsStatus(total=state.rollouts.count_of(query.project), journal_id=journal_id)
    chosen = _chosen(state, query)
    shown = nsmallest(max(0, query.limit), chosen, key=lambda live: live.order[1])
    positions = _positions(state, shown)
    pools = state.backends if "*" in query.backends else query.backends
    return RolloutsStatus(
        rollouts=[_rollout(state, live, wall_offset, positions) for live in shown],
        total=len(chosen),
        states=dict(Counter(live.state.value for live in chosen)),
        stages=dict(_stages(chosen)) if query.limit <= 0 else {},
        workers=list(_workers(state, wall_offset)) if query.workers else [],
        backends=[each for pool in sorted(pools) for each in _backends(state, pool)],
        pools={
            name: state.backends[name].weights_version for name in pools if name in state.backends
        },
        journal_id=journal_id,
    )


def _counts_alone(query: RolloutsQueried) -> bool:
    """Whether the number of a project's rollouts is all that is asked for: it is known without a look at them."""
    narrowed = (
        query.rollout_id
        or query.rollout_ids
        or query.task
        or query.group
        or query.door
        or query.workers
        or query.backends
    )
    return bool(query.project) and query.limit <= 0 and not narrowed


def _stages(chosen: list[LiveRollout]) -> Counter[str]:
    """Count rollouts by stage; those between two stages, and without a worker, are in none."""
    places = ((live.progress.stage, live.progress.queued) for live in chosen)
    return Counter(
        f"{stage.value}/queued" if queued else stage.value
        for stage, queued in places
        if stage is not None
    )


def _chosen(state: State, query: RolloutsQueried) -> list[LiveRollout]:
    every = state.rollouts.live
    if query.rollout_id:
        live = every.get(RolloutId(query.rollout_id))
        return [live] if live is not None and _is_selected(live, query) else []
    if query.rollout_ids:
        named = (every.get(RolloutId(each)) for each in query.rollout_ids)
        return [live for live in named if live is not None and _is_selected(live, query)]
    return [live for live in every.values() if _is_selected(live, query)]


def _is_selected(live: LiveRollout, query: RolloutsQueried) -> bool:
    rollout = live.rollout
    return (
        query.project in ("", rollout.project)
        and query.task in ("", rollout.task)
        and query.group in ("", rollout.group)
        and query.door in ("", rollout.door)
    )


def _rollout(
    state: State, live: LiveRollout, offset: float, positions: Mapping[RolloutId, int]
) -> RolloutStatus:
    rollout, progress = live.rollout, live.progress
    waits = live.state is RolloutState.WAITING
    return RolloutStatus(
        id=rollout.id,
        project=rollout.project,
        task=rollout.task,
        state=live.state,
        handler=rollout.handler,
        submitted_at=rfc3339(live.submitted_at + offset),
        instance=rollout.instance,
        group=rollout.group,
        sample=rollout.sample,
        llm=rollout.llm,
        priority=rollout.priority,
        worker=live.worker,
        attempt=live.attempt,
        began_at=None if live.began_at is None else rfc3339(live.began_at + offset),
        stage=progress.stage,
        queued=progress.queued,
        turns=progress.turns,
        tokens=progress.tokens,
        awaited=progress.awaited,
        waiting=_why(state, rollout.handler) if waits else "",
        position=positions.get(live.id),
        door=rollout.door,
    )


def _why(state: State, handler: str) -> str:
    """Return why rollouts of ``handler`` wait for a worker."""
    workers = state.rollouts.workers.values()
    if not workers:
        return "no rollout worker has joined"
    having = [worker for worker in workers if worker.has(handler)]
    if not having:
        known = ", ".join(sorted({name for worker in workers for name in worker.handlers}))
        return no_worker_has(handler, known)
    slots = sum(worker.slots for worker in having)
    return f"all {slots} slots of {len(having)} rollout workers are taken"


def _positions(state: State, shown: Sequence[LiveRollout]) -> dict[RolloutId, int]:
    """Return how many rollouts are assigned before each of ``shown`` that waits."""
    waiting = [live for live in shown if live.state is RolloutState.WAITING]
    if not waiting:
        return {}
    orders = (
        each.order for each in state.rollouts.live.values() if each.state is RolloutState.WAITING
    )
    if len(waiting) == 1:
        [live] = waiting
        return {live.id: sum(order < live.order for order in orders)}
    in_order = sorted(orders)
    return {live.id: bisect_left(in_order, live.order) for live in waiting}


def _workers(state: State, offset: float) -> Iterator[RolloutWorkerStatus]:
    rollouts = state.rollouts
    for _, worker in sorted(rollouts.workers.items()):
        yield RolloutWorkerStatus(
            name=worker.name,
            incarnation=worker.incarnation,
            slots=worker.slots,
            rollouts=worker.slots - rollouts.free_slots(worker),
            joined_at=rfc3339(worker.joined_at + offset),
            hostname=worker.hostname,
            version=worker.version,
            handlers=worker.handlers,
        )


def _backends(state: State, pool: str) -> Iterator[BackendStatus]:
    """Yield the backends of ``pool``; none of an unknown one."""
    known = state.backends.get(pool)
    if known is None:
        return
    taken: Counter[int] = Counter()
    for held in state.supply.ledgers[llm_resource(pool)].holders().values():
        for number in held.units:
            taken[number] += held.amount
    for each in known.backends:
        yield BackendStatus(
            pool=pool,
            name=each.name,
            number=each.number,
            address=each.address,
            seats=each.seats,
            taken=taken[each.number] // MILLI,
            dialect=each.dialect,
            model=each.model,
            drained=each.drained,
            unhealthy=each.unhealthy,
            weights_version=each.weights_version,
        )
