"""A revision of the configuration: pools, nodes, quotas, shares, APIs, and fleets."""

from __future__ import annotations

from domain.decisions import Decision
from domain.events import ConfigApplied
from domain.ids import ResourceId
from domain.inventory import Config, ResourceInventory
from scheduler.core.cycle.pool_policies import load_policies
from scheduler.core.handlers import generations
from scheduler.core.handlers.nodes import set_deadlines
from scheduler.core.sharing.shares import load_shares
from scheduler.core.state.lifecycle import refresh_needs
from scheduler.core.state.model import State


def applied(state: State, event: ConfigApplied, decisions: list[Decision]) -> None:
    """Put a revision in force; older ones are ignored, running actions are unharmed."""
    if event.config.revision < state.config.revision:
        return
    before = state.config
    state.set_config(event.config)
    state.coalescing.forget(event.config)
    load_policies(state)
    load_shares(state)
    _update_ledgers(state, before)
    if _changes_needs(before, state.config):
        refresh_needs(state)
    if before.fleets != state.config.fleets:
        generations.configure(state, decisions)
    state.queues.forget_reasons()  # what was short may be too large now
    state.residency.on_config(before, decisions)
    state.moves.all = bool(state.config.finishing_nodes)
    for node in state.supply.nodes.values():
        if node.name in state.config.finishing_nodes - before.finishing_nodes:
            node.moved = 0
        if node.lost_at is not None:
            set_deadlines(state, node.name, node.lost_at)


def _update_ledgers(state: State, before: Config) -> None:
    """Follow the capacities and quotas of cluster-wide resources."""
    config, supply = state.config, state.supply
    for name in before.resources.keys() - config.resources.keys():
        # Its quotas go on counting, for the case that it is declared again.
        gone = ResourceInventory(0, limits=before.inventory(name).limits)
        supply.set_inventory(ResourceId(name), gone)
    for ledger in supply.paced.values():
        ledger.advance(state.now)
    for name in config.resources:
        supply.set_inventory(ResourceId(name), state.inventory_of(ResourceId(name)))


def _changes_needs(before: Config, after: Config) -> bool:
    """Return whether actions may be admitted with other amounts than before."""
    return (before.resources, before.limits, before.shares, before.pools) != (
        after.resources,
        after.limits,
        after.shares,
        after.pools,
    )
