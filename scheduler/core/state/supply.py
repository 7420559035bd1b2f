"""Supply: nodes, the ledgers of their resources and of cluster-wide ones, and the actions on each node."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial

from domain.confinement import can_sandbox
from domain.ids import ActionId, ResourceId, node_resource
from domain.inventory import NodeInventory, PoolConfig, ResourceInventory
from domain.ports import (
    HostingLedger,
    Ledger,
    LocalLedger,
    ObservedLedger,
    PacedLedger,
    SeatLedger,
    SharingLedger,
    provides,
)
from scheduler.core.state.live import READY, LiveAction, LiveNode
from scheduler.core.state.node_order import KINDS, Load, NodeOrder

MakeLedger = Callable[[ResourceId, ResourceInventory], Ledger]


@dataclass(slots=True)
class Supply:
    """Where actions can run, and which units are free there."""

    make_ledger: MakeLedger
    #: Names of nodes that take no new actions by configuration.
    drained: Collection[str] = ()
    #: Those of them whose open trajectories continue.
    finishing: Collection[str] = ()
    pools: Mapping[str, PoolConfig] = field(default_factory=dict)
    nodes: dict[str, LiveNode] = field(default_factory=dict)
    ledgers: dict[ResourceId, Ledger] = field(default_factory=dict)
    #: Ledgers that also count over time.
    paced: dict[ResourceId, PacedLedger] = field(default_factory=dict)
    #: Ledgers whose units have several localities.
    local: dict[ResourceId, LocalLedger] = field(default_factory=dict)
    #: Ledgers with room for light actions beside their capacity.
    beside: dict[ResourceId, SharingLedger] = field(default_factory=dict)
    #: Ledgers of seats on units that many holders share.
    seated: dict[ResourceId, SeatLedger] = field(default_factory=dict)
    #: Ledgers of units that keep residents in their memory between actions.
    resident: dict[ResourceId, HostingLedger] = field(default_factory=dict)
    #: Actions that hold units, by node.
    on_node: dict[str, set[ActionId]] = field(default_factory=dict)
    #: Those of them that may be resized while they run, by their key resource.
    resizable: dict[ResourceId, dict[ActionId, LiveAction]] = field(default_factory=dict)
    #: Nodes of each pool by load; a change of `nodes` touches them there.
    order: NodeOrder = field(init=False)

    def __post_init__(self) -> None:
        self.order = NodeOrder(self.load)

    def nodes_of(self, pool: str) -> list[LiveNode]:
        """Return the nodes of ``pool``, whatever their state."""
        return [node for node in self.nodes.values() if node.inventory.pool == pool]

    def least_loaded(self, pool: str) -> list[LiveNode]:
        """Return the nodes of ``pool``, whatever their state, sorted by `load`."""
        return self.order.of(pool, self.nodes)

    def usable(self, node: LiveNode) -> bool:
        """Return whether ``node`` takes actions of any trajectory.

        A node with orphans does not: they may still run in environments that new actions would use.
        """
        return node.inventory.name not in self.drained and self._runs(node)

    def continues(self, node: LiveNode) -> bool:
        """Return whether ``node`` takes actions of the trajectories that have their environment there."""
        name = node.inventory.name
        return (name not in self.drained or name in self.finishing) and self._runs(node)

    def _runs(self, node: LiveNode) -> bool:
        return node.state is READY and not node.orphans and not node.refuses and self.confines(node)

    def confines(self, node: LiveNode) -> bool:
        """Return whether ``node`` can run commands as its pool requires."""
        if can_sandbox(node.inventory.isolation, node.inventory.protection):
            return True
        pool = self.pools.get(node.inventory.pool)
        return pool is None or not pool.needs_sandbox

    def load(self, node: str) -> Load:
        """Return the sort key of nodes: least memory held, then most free cores, then the name."""
        return (self._held_share("memory", node), self._held_share("cpu", node), node)

    def _held_share(self, kind: str, node: str) -> float:
        ledger = self.node_ledger(kind, node)
        if ledger is None or ledger.capacity <= 0:
            return 0.0
        return 1.0 - ledger.free / ledger.capacity

    def node_ledger(self, kind: str, node: str) -> Ledger | None:
        return self.ledgers.get(node_resource(kind, node))

    def open_ledger(self, resource: ResourceId, have: ResourceInventory) -> None:
        """Create the ledger of ``resource``."""
        ledger = self.ledgers[resource] = self.make_ledger(resource, have)
        if provides(ledger, PacedLedger):
            self.paced[resource] = ledger
        if provides(ledger, HostingLedger):
            self.resident[resource] = ledger
        self._classify(resource)
        kind, _, node = resource.partition(":")
        if kind in KINDS:
            if provides(ledger, ObservedLedger):
                ledger.changed = partial(self.order.touch, node)
                self.order.unobserved.discard(node)
            else:
                self.order.unobserved.add(node)
            self.order.touch(node)

    def set_inventory(self, resource: ResourceId, have: ResourceInventory) -> None:
        """Give ``resource`` the capacity in ``have``; its ledger is created if there is none."""
        if resource in self.ledgers:
            self.ledgers[resource].resize_capacity(have)
            self._classify(resource)
        else:
            self.open_ledger(resource, have)

    def update_node(self, inventory: NodeInventory, in_cluster: Collection[str]) -> None:
        """Follow the inventory of a node that joined; what it no longer offers shrinks to 0."""
        for resource in self.resources_of(inventory.name, in_cluster):
            if resource.partition(":")[0] not in inventory.resources:
                self.set_inventory(resource, ResourceInventory(0))
        for kind, have in inventory.resources.items():
            self.set_inventory(node_resource(kind, inventory.name), have)
        self.order.touch(inventory.name)

    def resources_of(self, node: str, in_cluster: Collection[str]) -> list[ResourceId]:
        """Return the resources that ``node`` has, or had before it joined with fewer.

        ``in_cluster`` names the cluster-wide resources: ``api:n1`` may look like one of node ``n1``.
        """
        return [
            resource
            for resource in self.ledgers
            if resource.partition(":")[2] == node and resource not in in_cluster
        ]

    def remove_node(self, name: str, in_cluster: Collection[str]) -> list[ResourceId]:
        """Remove a node with its ledgers; return the resources that are gone."""
        gone = self.resources_of(name, in_cluster)
        for resource in gone:
            self.close_ledger(resource)
        self.on_node.pop(name, None)
        del self.nodes[name]
        self.order.touch(name)
        return gone

    def close_ledger(self, resource: ResourceId) -> None:
        """Remove the ledger of ``resource``, which nothing holds."""
        del self.ledgers[resource]
        self.paced.pop(resource, None)
        self.local.pop(resource, None)
        self.beside.pop(resource, None)
        self.resident.pop(resource, None)
        self.seated.pop(resource, None)
        self.resizable.pop(resource, None)

    def _classify(self, resource: ResourceId) -> None:
        ledger = self.ledgers[resource]
        if provides(ledger, LocalLedger) and ledger.groups > 1:
            self.local[resource] = ledger
        else:
            self.local.pop(resource, None)
        if provides(ledger, SharingLedger) and ledger.has_room_beside:
            self.beside[resource] = ledger
        else:
            self.beside.pop(resource, None)
        if provides(ledger, SeatLedger) and ledger.names_units:
            self.seated[resource] = ledger
        else:
            self.seated.pop(resource, None)

    def place(self, live: LiveAction, node: str) -> None:
        """Record that ``live`` holds units on ``node``."""
        live.node = node
        there = self.on_node.get(node)
        if there is None:
            there = self.on_node[node] = set()
        there.add(live.action.id)
        if live.resizable and (key := live.key_resource):
            self.resizable.setdefault(key, {})[live.id] = live

    def displace(self, live: LiveAction) -> None:
        """Record that ``live`` holds nothing on its node any more; ``live.node`` stays set."""
        if live.node is not None:
            self.on_node[live.node].discard(live.action.id)
            if live.resizable and (key := live.key_resource):
                self.resizable[key].pop(live.id, None)

    def large_enough(self, needs: list[tuple[ResourceId, int]]) -> bool:
        """Return whether ``needs`` would fit if no units were held."""
        for resource, amount in needs:
            ledger = self.ledgers.get(resource)
            if ledger is None or not ledger.feasible(amount):
                return False
        return True
