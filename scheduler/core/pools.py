"""What a pool's policy means for the actions that wait in it."""

from __future__ import annotations

from domain.action import Action
from domain.errors import InvalidRequest
from scheduler.core.needs import Needs, depends_on_place, needs_of, plain_needs_of
from scheduler.core.policies import Policy, policy_named
from scheduler.core.policies.malleable import Malleable
from scheduler.core.policies.plain import Minimum
from scheduler.core.state import State

_MINIMUM = Minimum()


def policy_of(state: State, pool: str) -> Policy:
    """Return the policy of ``pool``; a name that nobody knows (any more) is `Minimum`."""
    policy = state.policies.get(pool)
    if policy is None:
        configured = state.config.pools.get(pool)
        try:
            policy = _MINIMUM if configured is None else policy_named(configured.policy)
        except InvalidRequest:
            policy = _MINIMUM
        state.policies[pool] = policy
    return policy


def needs_in(state: State, action: Action, pool: str, node: str | None) -> Needs:
    """Return what ``action`` is admitted with in ``pool``, on ``node`` if it is bound to one."""
    if not depends_on_place(action):
        return plain_needs_of(action, state.config)

    def most(name: str) -> int:
        limit = state.config.most(name)
        if limit is not None:
            return limit
        nodes = state.nodes_of(pool) if node is None else [state.nodes[node]]
        have = (each.inventory.resources.get(name) for each in nodes)
        return max((each.capacity for each in have if each is not None), default=0)

    return needs_of(action, state.config, most, policy_of(state, pool).admits_at)


def read_policies(state: State) -> None:
    """Look at the policies of the configuration that came in force."""
    state.policies.clear()
    pools = state.config.pools
    state.resizes = any(isinstance(policy_of(state, name), Malleable) for name in pools)
    if state.resizes:
        state.changed.update(state.ledgers)
