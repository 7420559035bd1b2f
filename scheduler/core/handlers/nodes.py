"""Nodes come, fall silent, return; configuration changes.

A silent node keeps its actions for `Config.grace_of` its pool: it may only be slow. Then they are
`unknown` (or wait again, when replay-safe), while the units stay with the node as *orphans* until
it reports them. When it is back it is told to end them, and takes nothing new before it has: a
restarted worker may yet read the order to run one. A node that comes back without its state never
reads those orders. A lease is held by its trainer, so the silence of a node does not end it.

After `Config.death_of` its pool it is dead: the trajectories whose environments it has end, and say so.
Should it come back after all, it is told to remove these environments.
"""

from __future__ import annotations

from domain.action import Kind, Outcome
from domain.decisions import Abort, Decision, Forget
from domain.events import ConfigApplied, NodeJoined, NodeLost, NodeReturned
from domain.ids import ActionId, ResourceId, node_resource
from domain.inventory import NodeInventory, ResourceInventory
from scheduler.core.cycle.pool_policies import read_policies
from scheduler.core.handlers.trajectories import give_up_environment, lose_environment
from scheduler.core.residency import services
from scheduler.core.residency.preload import prepare_declared, prepare_on
from scheduler.core.sharing.shares import read_shares
from scheduler.core.state.completion import finish
from scheduler.core.state.lifecycle import (
    MAX_ATTEMPTS,
    enqueue,
    leave_queue,
    needs_now,
    release_orphan,
    requeue,
)
from scheduler.core.state.model import LiveNode, NodeState, State
from scheduler.core.state.timers import TimerKind


def joined(state: State, event: NodeJoined, decisions: list[Decision]) -> None:
    """Take a node in. Another identity than before means that all it had is gone."""
    inventory = event.node
    if forgotten_mark(inventory.identity) in state.tombstones:
        # It had read its commands before it was forgotten: it reads that next, and begins anew.
        decisions.append(Forget(inventory.name, inventory.identity))
        return
    node = state.nodes.get(inventory.name)
    if node is None:
        node = state.nodes[inventory.name] = LiveNode(inventory)
    else:
        before, node.inventory = node.inventory, inventory
        if before.identity != inventory.identity:
            _lose_everything(state, node, "the node came back without its state", decisions)
    _update_ledgers(state, inventory)
    services.joined(state, inventory)
    reread_needs(state)
    _use_again(state, node, decisions)
    prepare_on(state, inventory, decisions)


def forgotten_mark(identity: str) -> str:
    """Name the tombstone of a forgotten node; no trajectory and no cancel is called so."""
    return f"node:{identity}"


def _use_again(state: State, node: LiveNode, decisions: list[Decision]) -> None:
    """Grant on ``node`` from now on, and let it end what it runs for nobody."""
    node.state, node.lost_at = NodeState.READY, None
    state.feasible.clear()
    state.deferrals.clear()
    if state.resizes:
        state.changed.update(node_resource(kind, node.name) for kind in node.inventory.resources)
    state.dirty = True
    for holder in sorted(node.orphans):
        action_id, _, attempt = holder.partition("#")
        reason = "given up while the node was silent"
        decisions.append(
            Abort(ActionId(action_id), node.name, reason, Outcome.UNKNOWN, int(attempt))
        )


def _update_ledgers(state: State, inventory: NodeInventory) -> None:
    for resource in resources_of(state, inventory.name):
        if resource.partition(":")[0] not in inventory.resources:
            _resize(state, resource, ResourceInventory(0))
    for kind, have in inventory.resources.items():
        _set_ledger(state, node_resource(kind, inventory.name), have)


def resources_of(state: State, node: str) -> list[ResourceId]:
    """Return the resources that ``node`` has, or had before it joined with less."""
    return [
        resource
        for resource in state.ledgers
        if resource.partition(":")[2] == node and resource not in state.config.resources
    ]


def _set_ledger(state: State, resource: ResourceId, have: ResourceInventory) -> None:
    if resource in state.ledgers:
        _resize(state, resource, have)
    else:
        state.open_ledger(resource, have)


def _resize(state: State, resource: ResourceId, have: ResourceInventory) -> None:
    state.ledgers[resource].resize_capacity(have)
    state.look_where_units_lie(resource)


def lost(state: State, event: NodeLost, decisions: list[Decision]) -> None:
    """Grant nothing more on a silent node, and give it some grace."""
    node = state.nodes.get(event.node)
    if node is None or node.inventory.incarnation != event.incarnation or node.lost_at is not None:
        return
    node.state, node.lost_at = NodeState.LOST, event.at
    _set_deadlines(state, node.name, event.at)
    state.deferrals.clear()
    state.dirty = True


def _set_deadlines(state: State, node: str, lost_at: float) -> None:
    config, pool = state.config, state.nodes[node].inventory.pool
    state.timers.set(lost_at + config.grace_of(pool), TimerKind.NODE_GRACE, node)
    state.timers.set(lost_at + config.death_of(pool), TimerKind.NODE_DEAD, node)


def returned(state: State, event: NodeReturned, decisions: list[Decision]) -> None:
    """Go on with a node that was only silent; end what it runs for nobody."""
    node = state.nodes.get(event.node)
    if node is None or node.inventory.incarnation != event.incarnation or node.lost_at is None:
        return
    _use_again(state, node, decisions)


def grace_over(state: State, node: LiveNode, decisions: list[Decision]) -> None:
    """Give up the actions of a node that has been silent for too long."""
    for action_id in sorted(state.on_node.get(node.name, ())):
        if state.actions[action_id].action.kind is not Kind.LEASE:
            _give_up(state, action_id, f"node {node.name} fell silent", decisions, gone=False)


def dead(state: State, node: LiveNode, decisions: list[Decision]) -> None:
    """End the trajectories whose environments are on a node that does not come back."""
    grace_over(state, node, decisions)
    silent = state.config.death_of(node.inventory.pool)
    why = f"node {node.name} is dead: silent for {silent:g} s"
    for trajectory in [t for t in state.trajectories.values() if t.node == node.name]:
        give_up_environment(state, trajectory, why, decisions)


def _give_up(
    state: State, action_id: ActionId, why: str, decisions: list[Decision], *, gone: bool
) -> None:
    live = state.actions[action_id]
    if live.action.replay_safe and live.aborting is None and live.attempt < MAX_ATTEMPTS:
        requeue(state, live, why, decisions, gone=gone)
    else:
        finish(state, live, Outcome.UNKNOWN, decisions, detail=why, gone=gone)


def _lose_everything(state: State, node: LiveNode, why: str, decisions: list[Decision]) -> None:
    """End all actions and environments that lived in a node's former state."""
    for holder in list(node.orphans):
        release_orphan(state, node.name, holder)
    for trajectory in [t for t in state.trajectories.values() if t.node == node.name]:
        lose_environment(state, trajectory, why, decisions)
    for action_id in sorted(state.on_node.get(node.name, ())):
        _give_up(state, action_id, why, decisions, gone=True)


def config_applied(state: State, event: ConfigApplied, decisions: list[Decision]) -> None:
    """Put a revision in force; older ones are ignored, running actions are unharmed."""
    if event.config.revision < state.config.revision:
        return
    before, state.config = state.config, event.config
    state.feasible.clear()
    state.deferrals.clear()
    state.merging.forget(event.config)
    read_policies(state)
    read_shares(state)
    for name in before.resources.keys() - event.config.resources.keys():
        # Its quotas go on counting, for the case that it is declared again.
        gone = ResourceInventory(0, limits=before.inventory(name).limits)
        _resize(state, ResourceId(name), gone)
    for ledger in state.paced.values():
        ledger.advance(state.now)
    for name in event.config.resources:
        _set_ledger(state, ResourceId(name), event.config.inventory(name))
    if (before.resources, before.limits, before.shares, before.pools) != (
        event.config.resources,
        event.config.limits,
        event.config.shares,
        event.config.pools,
    ):
        reread_needs(state)
    for queue in state.queues.values():
        queue.reason = None  # what was short may be too large now
    services.redeclared(state, before.services)
    prepare_declared(state, before.services, decisions)
    for node in state.nodes.values():
        if node.lost_at is not None:
            _set_deadlines(state, node.name, node.lost_at)
    state.dirty = True


def reread_needs(state: State) -> None:
    """Queue anew who waits and whose needs are others now.

    A name may have become cluster-wide or stopped being so, a policy may admit at another count, and
    what no place had before may be had.
    """
    for live in state.actions.values():
        if live.granted_at is not None:
            continue
        needs = needs_now(state, live)
        if needs != live.needs:
            live.needs = needs
            if live.queue is not None:
                leave_queue(state, live)
                enqueue(state, live, state.trajectory_of(live))
