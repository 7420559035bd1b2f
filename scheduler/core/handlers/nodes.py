"""Nodes: they join, fall silent, return, and count as dead after a long silence.

A silent node keeps its actions for the grace period of its pool (`Config.grace_of`): it may only be
slow. Then they end as `unknown` (or are requeued, if replay-safe), while their units stay with the node
as *orphans* until it reports them. When the node returns it is ordered to end the orphans, and gets no
new actions before it has: a restarted worker may still read the order to run one. A node that returns
without its state never reads those orders. A lease is held by its trainer, so the silence of a node
does not end it.

Where an engine placed a node and says that all its processes have ended, what hangs on the lost node ends at once.

A node that lacks disk space refuses new work, and says when it takes work again. What runs there goes on.

After `Config.death_of` its pool the node is dead: the trajectories with environments there end as lost.
If the node returns after all, it is ordered to remove these environments.
"""

from __future__ import annotations

from domain.action import Kind, Outcome
from domain.decisions import Abort, Decision, Forget
from domain.events import NodeFenced, NodeJoined, NodeLost, NodeRefuses, NodeReturned
from domain.ids import ActionId, node_resource
from scheduler.core.handlers.trajectories import abandon_environment, lose_environment
from scheduler.core.state.completion import finish, lose_copies
from scheduler.core.state.lifecycle import MAX_ATTEMPTS, refresh_needs, release_orphan, requeue
from scheduler.core.state.live import LiveNode, NodeState
from scheduler.core.state.model import State
from scheduler.core.state.moves import end_move
from scheduler.core.state.timers import TimerKind


def joined(state: State, event: NodeJoined, decisions: list[Decision]) -> None:
    """Add a node. Another identity than before means that its former state is lost."""
    inventory = event.node
    if forgotten_mark(inventory.identity) in state.tombstones:
        # The worker joined before it read that its node was removed; it starts over once it has.
        decisions.append(Forget(inventory.name, inventory.identity))
        return
    node = state.supply.nodes.get(inventory.name)
    if node is None:
        node = state.supply.nodes[inventory.name] = LiveNode(inventory)
    else:
        before, node.inventory = node.inventory, inventory
        if before.identity != inventory.identity:
            lose_everything(state, node, "the node returned without its state", decisions)
        elif not inventory.moves:
            _end_moves(state, node, decisions)
    node.refuses = ""
    state.supply.update_node(inventory, state.config.resources)
    refresh_needs(state)
    state.residency.on_nodes_changed()
    _resume(state, node, decisions)
    state.residency.on_node_joined(inventory, decisions)


def _end_moves(state: State, node: LiveNode, decisions: list[Decision]) -> None:
    """End the moves from a node whose worker, of an earlier version, reads no orders of moves."""
    for key in sorted(state.moves.active):
        if state.trajectories[key].node == node.name:
            why = "its node moves nothing now"
            end_move(state, state.trajectories[key], why, decisions, reported=True)


def forgotten_mark(identity: str) -> str:
    """Return the tombstone name of a removed node; no trajectory and no cancel has it."""
    return f"node:{identity}"


def _resume(state: State, node: LiveNode, decisions: list[Decision]) -> None:
    """Use ``node`` for grants from now on, and abort its orphans."""
    node.state, node.lost_at = NodeState.READY, None
    state.capacity_changed()
    state.moves.all = state.moves.all or bool(state.supply.finishing)
    if state.resizing.pools:
        state.resizing.changed.update(
            node_resource(kind, node.name) for kind in node.inventory.resources
        )
    for holder in sorted(node.orphans):
        action_id, _, attempt = holder.partition("#")
        reason = "given up while the node was silent"
        decisions.append(
            Abort(ActionId(action_id), node.name, reason, Outcome.UNKNOWN, int(attempt))
        )


def lost(state: State, event: NodeLost, decisions: list[Decision]) -> None:
    """Stop grants on a silent node, and set its deadlines."""
    node = state.supply.nodes.get(event.node)
    if node is None or node.inventory.incarnation != event.incarnation or node.lost_at is not None:
        return
    node.state, node.lost_at = NodeState.LOST, event.at
    set_deadlines(state, node.name, event.at)
    state.queues.deferrals.clear()
    state.dirty = True


def set_deadlines(state: State, node: str, lost_at: float) -> None:
    config, pool = state.config, state.supply.nodes[node].inventory.pool
    state.timers.set(lost_at + config.grace_of(pool), TimerKind.NODE_GRACE, node)
    state.timers.set(lost_at + config.death_of(pool), TimerKind.NODE_DEAD, node)


def returned(state: State, event: NodeReturned, decisions: list[Decision]) -> None:
    """Resume a node that was silent in the same incarnation."""
    node = state.supply.nodes.get(event.node)
    if node is None or node.inventory.incarnation != event.incarnation or node.lost_at is None:
        return
    _resume(state, node, decisions)


def fenced(state: State, event: NodeFenced, decisions: list[Decision]) -> None:
    """End what hangs on a lost node whose processes have ended; a later start of the node is not meant."""
    node = state.supply.nodes.get(event.node)
    if node is None or node.inventory.incarnation != event.incarnation or node.lost_at is None:
        return
    # Its folder may be found again: then it removes the environments, as a dead node that returns.
    _give_up(state, node, f"node {node.name} was ended by the engine that placed it", decisions)


def refuses(state: State, event: NodeRefuses, decisions: list[Decision]) -> None:
    """Stop grants on a node that refuses new work, or resume them."""
    node = state.supply.nodes.get(event.node)
    if node is None or node.inventory.incarnation != event.incarnation:
        return
    node.refuses = event.reason
    if event.reason:
        state.queues.deferrals.clear()
        state.dirty = True
    else:
        state.capacity_changed()


def grace_over(state: State, node: LiveNode, decisions: list[Decision]) -> None:
    """Finish or requeue the actions of a node whose grace period is over."""
    _give_up_actions(state, node, f"node {node.name} fell silent", decisions)


def dead(state: State, node: LiveNode, decisions: list[Decision]) -> None:
    """End the trajectories whose environments are on a dead node."""
    grace_over(state, node, decisions)
    silent = state.config.death_of(node.inventory.pool)
    why = f"node {node.name} is dead: silent for {silent:g} s"
    _give_up_trajectories(state, node, why, decisions)


def _give_up(state: State, node: LiveNode, why: str, decisions: list[Decision]) -> None:
    _give_up_actions(state, node, why, decisions)
    _give_up_trajectories(state, node, why, decisions)


def _give_up_actions(state: State, node: LiveNode, why: str, decisions: list[Decision]) -> None:
    """Finish or requeue all that its trainer does not hold."""
    for action_id in sorted(state.supply.on_node.get(node.name, ())):
        if state.actions[action_id].action.kind is not Kind.LEASE:
            _abandon_action(state, action_id, why, decisions, ended=False)


def _give_up_trajectories(
    state: State, node: LiveNode, why: str, decisions: list[Decision]
) -> None:
    for trajectory in state.environments.on(node.name):
        abandon_environment(state, trajectory, why, decisions)


def _abandon_action(
    state: State, action_id: ActionId, why: str, decisions: list[Decision], *, ended: bool
) -> None:
    live = state.actions[action_id]
    if live.action.replay_safe and live.aborting is None and live.attempt < MAX_ATTEMPTS:
        requeue(state, live, why, decisions, ended=ended)
    else:
        finish(state, live, Outcome.UNKNOWN, decisions, detail=why, ended=ended)


def lose_everything(state: State, node: LiveNode, why: str, decisions: list[Decision]) -> None:
    """End all actions and environments of a node's former state."""
    for holder in list(node.orphans):
        release_orphan(state, node.name, holder)
    lose_copies(state, node.name, why, decisions)
    for trajectory in state.environments.on(node.name):
        lose_environment(state, trajectory, why, decisions)
    for action_id in sorted(state.supply.on_node.get(node.name, ())):
        _abandon_action(state, action_id, why, decisions, ended=True)
