"""Hints on what unblocks an action that does not wait for units: time, memory, size.

- **Quotas** refill with time: how much is left, when the next part is free again, and when there is
  enough for the action and all actions before it.
- **Memory** is held by environments until their trainers finish them: how many bytes are missing,
  which environments are idle (their trajectories could be finished), and an upper bound on the
  wait, since an idle environment ends with its time to live.
- **Size**: what the action requests, and what the largest node or limit has.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from math import inf

from domain.advice import IdleEnvironment, UnblockHint, UnmetSize
from domain.ids import ResourceId
from domain.resources import units
from scheduler.core.advice.facts import WaitFacts
from scheduler.core.advice.forecast import LONGEST, seconds_until_free, taken_before, wanted_of
from scheduler.core.residency.service_turns import KIND
from scheduler.core.state.live import LiveAction, LiveTrajectory
from scheduler.core.state.model import State

#: Idle environments that a hint lists, the largest ones.
MOST_IDLE = 5
_SHORT = frozenset({"short_of", "behind"})


def unblock_hint(state: State, live: LiveAction, why: WaitFacts) -> UnblockHint | None:
    """Return what unblocks ``live``, which waits for ``why``; None for all other reasons."""
    if why.code == "too_large" and live.queue is not None:
        return _of_size(state, live)
    resource = ResourceId(why.resource or "")
    if why.code not in _SHORT or resource not in state.fleet.ledgers or live.queue is None:
        return None
    wanted = wanted_of(state, state.queues.active[live.queue], resource)
    ahead = taken_before(state, live, resource)
    if not wanted or ahead is None:
        return None
    before = sum(amount for _, amount in ahead)
    if resource in state.fleet.paced:
        return _of_quota(state, resource, wanted, before)
    if resource.startswith("memory:"):
        return _of_memory(state, resource, wanted, [amount for _, amount in ahead])
    return None


def _of_quota(state: State, resource: ResourceId, wanted: int, before: int) -> UnblockHint | None:
    paced = state.fleet.paced[resource]
    uses = paced.uses(state.now)
    short = min(uses, key=lambda use: use.left, default=None)
    ready_at = paced.ready_at(wanted)
    if short is None or (ready_at is None and short.left >= wanted):
        return None  # it waits for running calls, not for time
    for_all = paced.ready_at(before + wanted) if before else ready_at
    latest = for_all if for_all is not None else ready_at
    return UnblockHint(
        kind="quota",
        needed=units(wanted),
        left=units(short.left),
        missing=units(max(0, wanted + before - short.left)),
        eases_in_seconds=_from_now(state, short.eases_at),
        enough_in_seconds=_from_now(state, latest),
    )


def _of_memory(
    state: State, resource: ResourceId, wanted: int, before: Iterable[int]
) -> UnblockHint | None:
    node, free = resource.partition(":")[2], state.fleet.ledgers[resource].free
    if len(state.trajectories) > LONGEST:
        residents: list[LiveTrajectory] = []
    else:
        residents = [one for one in state.trajectories.values() if one.node == node]
    ends = [(_from_now(state, one.expires_at) or 0.0, one.memory_bytes) for one in residents]
    idle = [one for one in residents if not one.live and one.memory_bytes]
    idle.sort(key=lambda one: -one.memory_bytes)
    ahead = list(before)
    # Environments before it hold their memory for an unpredictable time.
    latest = seconds_until_free(free, ends, [(inf, amount) for amount in ahead], wanted)
    return UnblockHint(
        kind="memory",
        needed=wanted,
        left=free,
        missing=max(0, wanted + sum(ahead) - free),
        enough_in_seconds=None if latest in (None, inf) else latest,
        idle=[_idle(state, one) for one in islice(idle, MOST_IDLE)],
        idle_bytes=sum(one.memory_bytes for one in idle),
    )


def _idle(state: State, trajectory: LiveTrajectory) -> IdleEnvironment:
    expires = _from_now(state, trajectory.expires_at) or 0.0
    return IdleEnvironment(trajectory.project, trajectory.name, trajectory.memory_bytes, expires)


def _of_size(state: State, live: LiveAction) -> UnblockHint | None:
    """Return what exceeds the cluster's limits, its node, or every node of its pool."""
    assert live.queue is not None
    key = live.queue
    nodes = [state.fleet.nodes[key.node]] if key.node else state.fleet.nodes_of(key.pool)
    names = [node.name for node in nodes if state.fleet.usable(node)]
    asked = [(name, amount, [name]) for name, amount in key.needs.in_cluster]
    on_node = dict(key.needs.on_node)
    if key.memory_bytes:
        on_node["memory"] = key.memory_bytes
    asked += [
        (kind, amount, [f"{kind}:{name}" for name in names]) for kind, amount in on_node.items()
    ]
    sizes = []
    for name, amount, places in asked:
        ledgers = [
            state.fleet.ledgers[ResourceId(p)]
            for p in places
            if ResourceId(p) in state.fleet.ledgers
        ]
        largest = max((ledger.capacity for ledger in ledgers), default=0)
        if largest < amount:
            convert = int if name == "memory" else units
            sizes.append(UnmetSize(name, convert(amount), convert(largest)))
    if (memory := key.needs.unit_memory_bytes) and names:
        gpus = [node.inventory.resources.get(KIND) for node in nodes if node.name in names]
        largest = max((gpu.memory_bytes for gpu in gpus if gpu is not None), default=0)
        if largest < memory:
            sizes.append(UnmetSize("gpu_memory", memory, largest))
    return UnblockHint(kind="size", sizes=sizes) if sizes else None


def _from_now(state: State, at: float | None) -> float | None:
    return None if at is None else round(max(0.0, at - state.now), 3)
