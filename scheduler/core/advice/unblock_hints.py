"""What frees a waiting action where units that end are not the question: time, memory, size. For people.

- **Quotas** come back by themselves: how much is left, when something comes back, and when there is
  enough for the action and all before it.
- **Memory** belongs to environments, which last as long as their trainers like: how many bytes are
  missing, which environments nobody uses at the moment (their trajectories could be finished), and
  until when at the latest, since an environment that nobody uses ends with its time to live.
- **Size**: what the largest node has, beside what the action asks for.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from math import inf

from contract.responses import WaitDetails
from domain.advice import IdleEnvironment, UnblockHint, UnmetSize
from domain.ids import ResourceId
from domain.resources import units
from scheduler.core.advice.counterfactual import ahead_of, play
from scheduler.core.advice.forecast import LONGEST, wanted_of
from scheduler.core.residency.service_turns import KIND
from scheduler.core.state.model import LiveAction, LiveTrajectory, State

#: Idle environments that are named, the largest ones.
NAMED = 5
_SHORT = frozenset({"short_of", "behind"})


def relief(state: State, live: LiveAction, why: WaitDetails) -> UnblockHint | None:
    """Return what frees ``live``, which waits for ``why``; None where this module knows nothing."""
    if why.code == "too_large" and live.queue is not None:
        return _of_size(state, live)
    resource = ResourceId(why.resource or "")
    if why.code not in _SHORT or resource not in state.ledgers or live.queue is None:
        return None
    wanted = wanted_of(state, state.queues[live.queue], resource)
    ahead = ahead_of(state, live, resource)
    if not wanted or ahead is None:
        return None
    before = sum(amount for _, amount in ahead)
    if resource in state.paced:
        return _of_quota(state, resource, wanted, before)
    if resource.startswith("memory:"):
        return _of_memory(state, resource, wanted, [amount for _, amount in ahead])
    return None


def _of_quota(state: State, resource: ResourceId, wanted: int, before: int) -> UnblockHint | None:
    paced = state.paced[resource]
    uses = paced.uses(state.now)
    short = min(uses, key=lambda use: use.left, default=None)
    ready_at = paced.ready_at(wanted)
    if short is None or (ready_at is None and short.left >= wanted):
        return None  # it waits for calls to end, not for time
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
    node, free = resource.partition(":")[2], state.ledgers[resource].free
    if len(state.trajectories) > LONGEST:
        there: list[LiveTrajectory] = []
    else:
        there = [one for one in state.trajectories.values() if one.node == node]
    ends = [(_from_now(state, one.expires_at) or 0.0, one.memory_bytes) for one in there]
    idle = [one for one in there if not one.live and one.memory_bytes]
    idle.sort(key=lambda one: -one.memory_bytes)
    ahead = list(before)
    # Whoever is before it keeps what he takes for longer than anybody can tell.
    latest = play(free, ends, [(inf, amount) for amount in ahead], wanted)
    return UnblockHint(
        kind="memory",
        needed=wanted,
        left=free,
        missing=max(0, wanted + sum(ahead) - free),
        enough_in_seconds=None if latest in (None, inf) else latest,
        idle=[_idle(state, one) for one in islice(idle, NAMED)],
        idle_bytes=sum(one.memory_bytes for one in idle),
    )


def _idle(state: State, trajectory: LiveTrajectory) -> IdleEnvironment:
    expires = _from_now(state, trajectory.expires_at) or 0.0
    return IdleEnvironment(trajectory.project, trajectory.name, trajectory.memory_bytes, expires)


def _of_size(state: State, live: LiveAction) -> UnblockHint | None:
    """Return what is asked for and is nowhere: in the cluster, on its node, on the pool's nodes."""
    assert live.queue is not None
    key = live.queue
    nodes = [state.nodes[key.node]] if key.node else state.nodes_of(key.pool)
    names = [node.name for node in nodes if state.usable(node)]
    asked = [(name, amount, [name]) for name, amount in key.needs.in_cluster]
    on_node = dict(key.needs.on_node)
    if key.memory_bytes:
        on_node["memory"] = key.memory_bytes
    asked += [
        (kind, amount, [f"{kind}:{name}" for name in names]) for kind, amount in on_node.items()
    ]
    sizes = []
    for name, amount, places in asked:
        ledgers = [state.ledgers[ResourceId(p)] for p in places if ResourceId(p) in state.ledgers]
        largest = max((ledger.capacity for ledger in ledgers), default=0)
        if largest < amount:
            say = int if name == "memory" else units
            sizes.append(UnmetSize(name, say(amount), say(largest)))
    if (memory := key.needs.gpu_memory_bytes) and names:
        gpus = [node.inventory.resources.get(KIND) for node in nodes if node.name in names]
        largest = max((gpu.memory_bytes for gpu in gpus if gpu is not None), default=0)
        if largest < memory:
            sizes.append(UnmetSize("gpu_memory", memory, largest))
    return UnblockHint(kind="size", sizes=sizes) if sizes else None


def _from_now(state: State, at: float | None) -> float | None:
    return None if at is None else round(max(0.0, at - state.now), 3)
