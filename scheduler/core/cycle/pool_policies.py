"""Pool policies: the policy in force for each pool, and the needs it admits actions with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from domain.action import EXEC, Action
from domain.errors import InvalidRequest
from domain.ids import node_resource
from domain.resources import MILLI, UnitSet
from scheduler.core.policies.balanced import Balanced
from scheduler.core.policies.fixed import Minimum
from scheduler.core.policies.protocol import Policy
from scheduler.core.policies.registry import policy_named
from scheduler.core.sharing.cohorts import largest_within
from scheduler.core.sharing.shares import ceiling, with_project
from scheduler.core.state.cpu_usage_history import light_amount
from scheduler.core.state.demand import Needs, depends_on_place, needs_of, plain_needs_of
from scheduler.core.state.generations import unrouted_needs
from scheduler.core.state.model import State

_MINIMUM = Minimum()
#: Ways to admit an action without a profile at its smallest count, wherever it runs.
_SMALLEST: Final = (Policy.admit_count, Balanced.admit_count)
#: An efficient count is at most this fraction of a node (1/4): on a node of 16 cores, waiting for 8
#: delayed the actions behind by more than it gained.
FEWEST_AT_ONCE = 4


def policy_of(state: State, pool: str) -> Policy:
    """Return the policy of ``pool``; `Minimum` for an unknown name."""
    policy: Policy | None = state.pools.policies.get(pool)
    if policy is None:
        configured = state.config.pools.get(pool)
        try:
            policy = _MINIMUM
            if configured is not None:
                policy = policy_named(configured.policy).in_pool(configured.shares)
        except InvalidRequest:
            policy = _MINIMUM
        state.pools.policies[pool] = policy
    return policy


def needs_in(state: State, action: Action, pool: str, node: str | None) -> Needs:
    """Return the needs of ``action`` in ``pool``, on ``node`` if it is bound to one."""
    if action.generation is not None:
        return unrouted_needs(action)
    if depends_on_place(action):
        needs = _needs_in_place(state, action, pool, node)
    else:
        needs = plain_needs_of(action, state.config)
    if state.learned.cpu_usage and (light := light_amount(state, action, pool, node)):
        needs = needs._replace(on_node=tuple(sorted((*needs.on_node, ("cpu", light)))))
    if action.call is not None or state.supply.resident:
        needs = state.residency.needs(needs, action, policy_of(state, pool))
    return with_project(state, needs, action, pool) if state.sharing.cohorts else needs


def keeps_needs(state: State) -> Callable[[Action, str], bool]:
    """Return what says of an action in a pool that `needs_in` follows from the configuration alone.

    Only where projects share nothing and no unit keeps residents.
    """
    smallest: dict[str, bool] = {}

    def keeps(action: Action, pool: str) -> bool:
        cost = action.cost
        if action.call is not None or action.elasticity is not None or len(cost) > 1:
            return False
        if action.family and "cpu" not in cost:  # it may become light
            return False
        if (known := smallest.get(pool)) is None:
            policy = policy_of(state, pool)
            known = smallest[pool] = type(policy).admit_count in _SMALLEST
        return known or not depends_on_place(action)

    return keeps


def _needs_in_place(state: State, action: Action, pool: str, node: str | None) -> Needs:
    def most(name: str) -> int:
        there = in_one_place(name)
        allowed = ceiling(state, pool, name, action.project) if state.sharing.cohorts else None
        return there if allowed is None else min(there, largest_within(name, allowed))

    def in_one_place(name: str) -> int:
        limit = state.config.most(name)
        if limit is not None:
            return limit
        nodes = state.supply.nodes_of(pool) if node is None else [state.supply.nodes[node]]
        have = (each.inventory.resources.get(name) for each in nodes)
        return max((each.capacity for each in have if each is not None), default=0)

    policy = policy_of(state, pool)

    def admits_at(name: str, counts: UnitSet) -> int:
        if action.call is not None:
            steady = state.residency.count_of(action, pool, counts)
            if steady is not None:
                return steady
        profile = action.elasticity
        if profile is None or not policy.caps_grants or _resized(policy, action):
            return policy.admit_count(counts)
        if crowded(state, name, pool, node):
            return counts[0]
        some = tuple(count for count in counts if count * FEWEST_AT_ONCE <= most(name))
        return policy.admit_count(some or counts[:1], profile)

    return needs_of(action, state.config, most, admits_at)


def _resized(policy: Policy, action: Action) -> bool:
    """Return whether ``action`` is resized while it runs, provided it has several counts."""
    return action.malleable and action.kind is EXEC and policy.resizes


def crowded(state: State, name: str, pool: str, node: str | None) -> bool:
    """Return whether more actions wait for ``name`` in ``pool``, or on ``node``, than it has units.

    An action that may run on any node counts in equal parts on each.
    """
    nodes = [each.name for each in state.supply.nodes_of(pool)]
    homes = nodes if node is None else [node]
    waiting = 0.0
    for key, queue in state.queues.active.items():
        if queue.out_of_share:
            continue
        if key.pool == pool and key.needs.key == name and key.node in (None, *homes):
            waiting += queue.size if key.node else queue.size * len(homes) / max(1, len(nodes))
    units = state.config.resources.get(name)
    if units is None:
        ledgers = (state.supply.ledgers.get(node_resource(name, home)) for home in homes)
        units = sum(ledger.capacity for ledger in ledgers if ledger is not None)
    return waiting * MILLI > units


def fits_at_once(state: State, kind: str, pool: str, admitted: int) -> bool:
    """Return whether all actions of ``pool`` that hold, reserve or wait for ``kind`` fit at once.

    Each with the amount it is admitted with, on any node; ``admitted``: milli-units reserved.
    """
    wanted, units = admitted, 0
    for key, queue in state.queues.active.items():
        halted = key.held or queue.out_of_share
        if key.pool == pool and key.needs.key == kind and not halted:
            wanted += queue.size * key.needs.key_amount
    for node in state.supply.nodes_of(pool):
        resource = node_resource(kind, node.name)
        ledger = state.supply.ledgers.get(resource)
        if ledger is not None:
            units += ledger.capacity
            wanted += sum(live.needs.key_amount for live in state.holding(resource))
    return wanted <= units


def load_policies(state: State) -> None:
    """Read the policies of the configuration in force."""
    state.pools.policies.clear()
    pools = state.config.pools
    state.resizing.pools = {name for name in pools if policy_of(state, name).resizes}
    if state.resizing.pools:
        state.resizing.changed.update(state.supply.ledgers)
