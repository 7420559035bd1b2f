"""Forgetting a node that does not come back.

Rules
1. Only a node that shows no life and holds no work is forgotten: no action has units there, no
   trajectory that is open has its environment there. What has work there ends first, by itself once
   the node is dead, or because somebody ends it. Else whoever asked is told why not.
2. What its silence left goes with it: units of attempts it may still be running, and the memory of
   environments it was told to remove. Nobody is granted anything there, so nobody meets them.
3. Should it live after all, it is told that it was forgotten, behind everything it was told before:
   it runs none of that, removes those environments, and joins under another identity, as a new node.
   A worker that joins meanwhile under the old identity is not taken in.
"""

from __future__ import annotations

from typing import NamedTuple

from domain.decisions import Decision, Forget, Refuse
from domain.events import NodeForgetAsked
from scheduler.core.handlers.nodes import forgotten_mark
from scheduler.core.state.completion import bury, drop_trajectory
from scheduler.core.state.lifecycle import release_orphan, reread_needs
from scheduler.core.state.live import LiveNode
from scheduler.core.state.model import State


class _No(NamedTuple):
    """Why not: as `Refuse` has it."""

    code: str
    detail: str


def asked(state: State, event: NodeForgetAsked, decisions: list[Decision]) -> None:
    """Forget a node, or say why not (rule 1)."""
    node = state.fleet.nodes.get(event.node)
    if node is None:
        no = _No("not_found", f"there is no node {event.node!r}")
    else:
        why_not = _why_not(state, node)
        if why_not is None:
            _forget(state, node)
            decisions.append(
                Forget(node.name, node.inventory.identity, event.request_id, event.reply_to)
            )
            return
        no = why_not
    decisions.append(Refuse(event.request_id, event.reply_to, *no))


def _why_not(state: State, node: LiveNode) -> _No | None:
    name = node.name
    if node.lost_at is None:
        return _No("conflict", f"node {name} lives: drain it, and stop its worker first")
    dead = f"it is dead after {state.config.death_of(node.inventory.pool):g} s of silence"
    if holding := len(state.fleet.on_node.get(name, ())):
        return _No("conflict", f"{holding} actions hold units of node {name}; {dead}")
    trajectories = state.trajectories.values()
    if there := sum(each.node == name and not each.removing for each in trajectories):
        detail = f"{there} trajectories have their environment on node {name}; {dead}"
        return _No("conflict", detail)
    return None


def _forget(state: State, node: LiveNode) -> None:
    name = node.name
    for holder in list(node.orphans):
        release_orphan(state, name, holder)
    for trajectory in [each for each in state.trajectories.values() if each.node == name]:
        drop_trajectory(state, trajectory)
    for resource in state.fleet.remove_node(name, state.config.resources):
        state.timers.pacing.pop(resource, None)
        state.resizing.forget(resource)
        state.sharing.limited.discard(resource)
    bury(state, forgotten_mark(node.inventory.identity), f"node {name} was forgotten")
    state.queues.forget_node(name)
    state.capacity_changed()
    reread_needs(state)
