"""Removal of a node that does not return, or may not.

Rules
1. Only a silent node without work is removed: no action holds units there, and no open trajectory has
   its environment there. Such work ends before, when the node is dead or by request. Else the request
   is refused with the reason.
2. Orphans of the node and the memory of environments that it should remove are released with it; no
   other action can be granted there.
3. If the node is alive after all, it receives `Forget` after all earlier commands: it runs none of them,
   removes those environments, and joins under another identity, as a new node. A worker that joins
   meanwhile under the old identity is refused.
4. A revoked node is removed at once, whether it lives or not. What hangs on it ends as on a node that returned without its state,
   leases as well: the machine is trusted with nothing more. If it is admitted again, it removes what it kept, as above.
"""

from __future__ import annotations

from typing import NamedTuple

from domain.decisions import Decision, Forget, Refuse, RemoveEnvironment
from domain.events import NodeForgetAsked, NodeRevoked
from scheduler.core.handlers.nodes import forgotten_mark, lose_everything
from scheduler.core.state.completion import add_tombstone, environment_gone, lose_copies
from scheduler.core.state.lifecycle import refresh_needs, release_orphan
from scheduler.core.state.live import LiveNode
from scheduler.core.state.model import State


class _Refusal(NamedTuple):
    """Code and detail of a `Refuse`."""

    code: str
    detail: str


def asked(state: State, event: NodeForgetAsked, decisions: list[Decision]) -> None:
    """Remove a node, or refuse with the reason (rule 1)."""
    node = state.supply.nodes.get(event.node)
    if node is None:
        refusal = _Refusal("not_found", f"there is no node {event.node!r}")
    else:
        why_not = _why_not(state, node)
        if why_not is None:
            _forget(state, node, decisions)
            decisions.append(
                Forget(node.name, node.inventory.identity, event.request_id, event.reply_to)
            )
            return
        refusal = why_not
    decisions.append(Refuse(event.request_id, event.reply_to, *refusal))


def revoked(state: State, event: NodeRevoked, decisions: list[Decision]) -> None:
    """End what hangs on a node, and remove it (rule 4). Nothing changes where it is gone."""
    node = state.supply.nodes.get(event.node)
    if node is None:
        return
    why = f"node {node.name} was revoked"
    decisions.extend(
        RemoveEnvironment(each.key, node.name, why)
        for each in state.environments.on(node.name)
        if not each.removing
    )
    lose_everything(state, node, why, decisions)
    _forget(state, node, decisions)
    decisions.append(Forget(node.name, node.inventory.identity))


def _why_not(state: State, node: LiveNode) -> _Refusal | None:
    name = node.name
    if node.lost_at is None:
        return _Refusal("conflict", f"node {name} lives: drain it, and stop its worker first")
    dead = f"it is dead after {state.config.death_of(node.inventory.pool):g} s of silence"
    if holding := len(state.supply.on_node.get(name, ())):
        return _Refusal("conflict", f"{holding} actions hold units of node {name}; {dead}")
    if there := sum(not each.removing for each in state.environments.on(name)):
        detail = f"{there} trajectories have their environment on node {name}; {dead}"
        return _Refusal("conflict", detail)
    return None


def _forget(state: State, node: LiveNode, decisions: list[Decision]) -> None:
    name = node.name
    lose_copies(state, name, f"node {name} was forgotten", decisions)
    for holder in list(node.orphans):
        release_orphan(state, name, holder)
    for trajectory in state.environments.on(name):
        environment_gone(state, trajectory)
    for resource in state.supply.remove_node(name, state.config.resources):
        state.timers.pacing.pop(resource, None)
        state.resizing.forget(resource)
        state.sharing.limited.discard(resource)
    add_tombstone(state, forgotten_mark(node.inventory.identity), f"node {name} was forgotten")
    state.queues.forget_node(name)
    state.capacity_changed()
    refresh_needs(state)
    state.residency.on_nodes_changed()
