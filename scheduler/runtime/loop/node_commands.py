"""Commands to nodes that follow from the decisions of one pass."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final

from domain.codec import NodeCommand, encode
from domain.confinement import NETWORK_EGRESS
from domain.decisions import (
    Abort,
    Decision,
    EndMove,
    Evict,
    Forget,
    ForkEnvironment,
    Grant,
    MoveEnvironment,
    Prepare,
    ReceiveEnvironment,
    RemoveEnvironment,
    Resize,
    TransferFile,
)
from domain.events import ConfigApplied, Event, NodeJoined
from domain.ports import PrepareOrder, RunOrder
from domain.ports.images import WarmOrder
from domain.redis_keys import Keys
from scheduler.core.machine import Machine
from scheduler.core.residency.services import service_of

#: Decisions that are commands themselves, by the field of `NodeCommand`.
_FIELDS: Final[dict[type, str]] = {
    Abort: "abort",
    Resize: "resize",
    RemoveEnvironment: "remove",
    Evict: "evict",
    TransferFile: "transfer",
    ForkEnvironment: "fork",
    MoveEnvironment: "move",
    ReceiveEnvironment: "receive",
    EndMove: "end_move",
    Forget: "forget",
}
_COMMANDS: Final = (
    Abort, Resize, RemoveEnvironment, Evict, TransferFile, ForkEnvironment, Forget, MoveEnvironment,
    ReceiveEnvironment, EndMove,
)  # fmt: skip


def node_commands(
    machine: Machine,
    keys: Keys,
    epoch: int,
    decisions: Iterable[Decision],
    events: Collection[Event] = (),
) -> list[tuple[str, bytes]]:
    """Return (stream, body) for each node with commands; ``events`` are those of the same pass."""
    by_node: dict[str, list[NodeCommand]] = defaultdict(list)
    #: Nodes that are forgotten in this pass: their commands use their former identities.
    identities: dict[str, str] = {}
    for decision in decisions:
        if isinstance(decision, Grant):
            if decision.node is not None:
                order = _order(machine, decision)
                if order is not None:
                    by_node[decision.node].append(NodeCommand(epoch, run=order))
        elif isinstance(decision, _COMMANDS) and decision.node:  # else the journal tells a gateway
            field: dict[str, Any] = {_FIELDS[type(decision)]: decision}
            by_node[decision.node].append(NodeCommand(epoch, **field))
            if isinstance(decision, Forget):
                identities[decision.node] = decision.identity
        elif isinstance(decision, Prepare) and (prepare := _prepare_order(machine, decision)):
            by_node[decision.node].append(NodeCommand(epoch, prepare=prepare))
    nodes = machine.state.supply.nodes
    for name, warm in _warm_orders(machine, events):
        by_node[name].append(NodeCommand(epoch, warm=warm))
    for name in by_node.keys() - identities.keys():
        identities[name] = nodes[name].inventory.identity
    return [
        (keys.commands(name, identities[name]), encode(commands))
        for name, commands in by_node.items()
    ]


def _order(machine: Machine, granted: Grant) -> RunOrder | None:
    live = machine.live(granted.action_id)
    if live is None or live.lease_expires_at is not None:
        return None
    trajectory = machine.state.trajectory_of(live)
    environment = trajectory.environment if trajectory else live.action.environment
    order = RunOrder(live.action, granted.allocations, granted.attempt, environment)
    if live.action.call is not None:
        order.api = machine.state.config.apis.get(live.action.call.target)
        order.service = service_of(machine.state, live.action)
    if environment is not None and environment.network == NETWORK_EGRESS:
        pool = machine.state.config.pools.get(live.pool)
        # Without rules, as after a change of the pool, the node refuses the command.
        order.egress = None if pool is None or NETWORK_EGRESS not in pool.networks else pool.egress
    return order


def _warm_orders(machine: Machine, events: Collection[Event]) -> Iterator[tuple[str, WarmOrder]]:
    """Yield what nodes are to keep prepared: all after a change of the configuration, a node that joins.

    A worker that has just started keeps nothing, so a pool without prepared environments sends it nothing.
    """
    state = machine.state
    changed = any(isinstance(event, ConfigApplied) for event in events)
    joined = {event.node.name for event in events if isinstance(event, NodeJoined)}
    for name in (
        sorted(state.supply.nodes) if changed else sorted(joined & state.supply.nodes.keys())
    ):
        inventory = state.supply.nodes[name].inventory
        pool = state.config.pools.get(inventory.pool)
        images = {} if pool is None else pool.warm
        if inventory.warms and (images or changed):
            yield name, WarmOrder(dict(images))


def _prepare_order(machine: Machine, decided: Prepare) -> PrepareOrder | None:
    """Return the order to the node; None for a service that was removed in the same pass."""
    service = machine.state.config.services.get(decided.home.service)
    if service is None:
        return None
    return PrepareOrder(service, decided.home, decided.memory_bytes, decided.awake)
