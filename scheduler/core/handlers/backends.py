"""Backends of language models: the seats behind ``llm:POOL``, which change while leases hold them.

Rules (`domain.backends` has the vocabulary)
1. A pool is a cluster-wide resource of the configuration in force from the moment it is known, so actions may name
   it; its capacity is the seats of its backends, below the limit of a Resource document.
2. Clearing makes the next weights version; what is added afterwards has that one unless it names its own.
3. Changes that are equal to the present state decide nothing, nor do those of one pool too many.
4. A pool that never had a backend is forgotten with its last rollout: users choose the names. The others are kept,
   with their numbers and weights versions, until an operator has an empty one forgotten. A project opens no pool while its rollouts name `MAX_POOLS_OF_PROJECT`.
"""

from __future__ import annotations

from msgspec.structs import replace

from domain.backends import (
    MAX_POOLS,
    MAX_POOLS_OF_PROJECT,
    UNLIMITED_SEATS,
    BackendPool,
    LlmBackend,
    llm_resource,
)
from domain.decisions import Decision, SetBackends
from domain.rollout_events import BackendJudged, BackendsChanged
from scheduler.core.sharing.shares import load_shares
from scheduler.core.state.lifecycle import refresh_needs
from scheduler.core.state.model import State


def changed(state: State, event: BackendsChanged, decisions: list[Decision]) -> None:
    """Clear, remove and add backends of a pool."""
    before = state.backends.get(event.pool)
    if event.forget:
        if before is not None and not before.backends and _forget(state, event.pool):
            decisions.append(SetBackends(event.pool, BackendPool()))
        return
    if before is None and len(state.backends) >= MAX_POOLS:
        return
    pool = before or BackendPool()
    if event.balance is not None:
        pool = replace(pool, balance=event.balance)
    if event.clear:
        pool = replace(pool, backends=(), weights_version=pool.weights_version + 1)
    if event.removed:
        kept = tuple(each for each in pool.backends if each.name not in event.removed)
        pool = replace(pool, backends=kept)
    for backend in event.put:
        pool = _put(pool, backend)
    if pool != before:
        _set(state, event.pool, pool, decisions)


def _put(pool: BackendPool, backend: LlmBackend) -> BackendPool:
    """Return ``pool`` with ``backend``, which replaces the one of its name."""
    version = backend.weights_version or pool.weights_version
    present = pool.named(backend.name)
    same = present is not None and present.address == backend.address
    number = present.number if present is not None and same else pool.next_number
    unhealthy = present.unhealthy if present is not None and same else ""
    added = replace(backend, weights_version=version, number=number, unhealthy=unhealthy)
    others = [each for each in pool.backends if each.name != backend.name]
    return replace(
        pool,
        backends=tuple(sorted([*others, added], key=lambda each: each.number)),
        weights_version=max(pool.weights_version, version),
        next_number=max(pool.next_number, number + 1),
    )


def judged(state: State, event: BackendJudged, decisions: list[Decision]) -> None:
    """Give a backend that failed no new seats, until it works again."""
    pool = state.backends.get(event.pool)
    backend = None if pool is None else pool.named(event.backend)
    if pool is None or backend is None or backend.unhealthy == event.unhealthy:
        return
    judged = replace(backend, unhealthy=event.unhealthy)
    changed = tuple(judged if each is backend else each for each in pool.backends)
    _set(state, event.pool, replace(pool, backends=changed), decisions)


def open_pool(state: State, pool: str, project: str, decisions: list[Decision]) -> str:
    """Make a pool known for a rollout of ``project``, if it is not: leases on it wait for backends from now on.

    Return why it stays unknown; empty: it is known.
    """
    if pool in state.backends:
        return ""
    if len(state.backends) >= MAX_POOLS:
        return f"{MAX_POOLS} pools of backends are known: use one of them"
    if state.rollouts.pools_of(project) >= MAX_POOLS_OF_PROJECT:
        return f"rollouts of the project name {MAX_POOLS_OF_PROJECT} pools of backends: use one of them"
    _set(state, pool, BackendPool(), decisions)
    return ""


def forget_unused(state: State, pool: str) -> None:
    """Forget a pool that never had a backend, as `_forget`."""
    if state.backends.get(pool) == BackendPool():
        _forget(state, pool)


def _forget(state: State, pool: str) -> bool:
    """Forget a pool that no live rollout names; return whether it was.

    One that a Resource document declares is kept, and one with holders.
    """
    resource, declared = llm_resource(pool), state.config.resources
    if state.rollouts.name_pool(pool) or declared.get(resource) != UNLIMITED_SEATS:
        return False
    if state.supply.ledgers[resource].holders():
        return False
    del state.backends[pool]
    kept = {name: amount for name, amount in declared.items() if name != resource}
    state.set_config(replace(state.config, resources=kept))
    state.supply.close_ledger(resource)
    state.resizing.forget(resource)
    state.sharing.limited.discard(resource)
    load_shares(state)
    refresh_needs(state)
    state.queues.forget_reasons()
    return True


def _set(state: State, name: str, pool: BackendPool, decisions: list[Decision]) -> None:
    is_new = name not in state.backends
    state.backends[name] = pool
    if is_new:
        state.set_config(state.config)
    resource = llm_resource(name)
    state.supply.set_inventory(resource, state.inventory_of(resource))
    if is_new:
        load_shares(state)
        refresh_needs(state)
    state.queues.forget_reasons()
    state.capacity_changed()
    state.released(resource)
    decisions.append(SetBackends(name, pool))
