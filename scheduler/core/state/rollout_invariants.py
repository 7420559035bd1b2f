"""Invariants of rollouts, their workers and backends, recomputed from first principles (see `invariants`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from domain.backends import llm_resource
from domain.rollouts import RolloutState
from scheduler.core.state.model import State
from scheduler.core.state.rollouts import (
    MAX_LOSSES,
    REMEMBERED_SECONDS,
    over_mark,
    owner_of,
)


def rollouts_agree(state: State) -> Iterator[str]:
    """Yield each violation."""
    yield from _assignments_agree(state)
    yield from _none_waits_in_vain(state)
    yield from _ends_are_final(state)
    yield from _trajectories_have_owners(state)
    yield from _backends_agree(state)


def _assignments_agree(state: State) -> Iterator[str]:
    """Each rollout has one worker at a time, and no worker more than it was given."""
    rollouts = state.rollouts
    found: Counter[str] = Counter()
    for name, live in rollouts.live.items():
        if live.id != name:
            yield f"{name} is stored under another id"
        if (live.state is RolloutState.ASSIGNED) != bool(live.worker):
            yield f"{name} is {live.state} with worker {live.worker!r}"
        if live.worker:
            found[live.worker] += 1
            if live not in rollouts.of_worker(live.worker):
                yield f"{name} is missing at worker {live.worker}"
            if live.worker not in rollouts.workers:
                yield f"{name} is assigned to {live.worker}, which is away"
        if live.losses >= MAX_LOSSES or live.losses > live.attempt:
            yield f"{name} lost {live.losses} workers in {live.attempt} attempts"
    for worker in rollouts.workers.values():
        if rollouts.free_slots(worker) != worker.slots - found[worker.name]:
            yield f"worker {worker.name} counts its rollouts wrongly"


def _none_waits_in_vain(state: State) -> Iterator[str]:
    """I8: no rollout waits while a worker has a free slot."""
    rollouts = state.rollouts
    waiting = [live for live in rollouts.live.values() if live.state is RolloutState.WAITING]
    if rollouts.changed:
        yield "rollouts changed and were not assigned"
    for live in waiting:
        if rollouts.freest_worker(live.rollout.handler) is not None:
            yield f"{live.id} waits beside a free worker"
    for handler in {live.rollout.handler for live in waiting}:
        mine = [live for live in waiting if live.rollout.handler == handler]
        if rollouts.first_waiting(handler) is not min(mine, key=lambda live: live.order):
            yield f"another rollout of {handler} than the first one is assigned next"


def _ends_are_final(state: State) -> Iterator[str]:
    for name, live in state.rollouts.live.items():
        if over_mark(live.rollout.project, name) in state.tombstones:
            yield f"{name} is over and still live"
        if live.state is RolloutState.FINISHED:
            yield f"{name} is finished and still live"


def _trajectories_have_owners(state: State) -> Iterator[str]:
    """A trajectory that belongs to a live rollout ends with it."""
    for key, trajectory in state.trajectories.items():
        owner = owner_of(trajectory.name)
        live = None if owner is None else state.rollouts.find(owner, trajectory.project)
        opened_within = live is not None and trajectory.opened_at > live.submitted_at
        if live is not None and opened_within and key not in live.trajectories:
            yield f"trajectory {key} does not end with its rollout"
        over = None if owner is None else state.tombstones.get(over_mark(trajectory.project, owner))
        if over is not None and trajectory.opened_at > over.until - REMEMBERED_SECONDS:
            yield f"trajectory {key} was opened after the end of its rollout"


def _backends_agree(state: State) -> Iterator[str]:
    """Each pool of backends is a resource, and its backends have numbers of their own."""
    for name, pool in state.backends.items():
        resource = llm_resource(name)
        if resource not in state.config.resources or resource not in state.supply.seated:
            yield f"{resource} has backends and cannot be granted"
        numbers = [each.number for each in pool.backends]
        names = [each.name for each in pool.backends]
        if len(set(numbers)) != len(numbers) or len(set(names)) != len(names):
            yield f"{resource} names a backend twice"
        if any(not 0 < number < pool.next_number for number in numbers):
            yield f"{resource} has a backend without a number of its own"
