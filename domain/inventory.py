"""Inventory of nodes, and the configuration, in the form that the core uses."""

from __future__ import annotations

from typing import Final

import msgspec

from domain.allocation import Home
from domain.apis import ApiConfig
from domain.backends import BackendPool
from domain.confinement import NETWORK_EGRESS, NETWORK_HOST, NETWORK_NONE, REQUIRED, SandboxRule
from domain.egress import EgressRules
from domain.fleets import FleetSpec
from domain.limits import Limits, Share
from domain.node_groups import NodeGroupSpec
from domain.policies import DEFAULT_POLICY
from domain.project_limits import ProjectBounds
from domain.protection import Protection
from domain.resources import MILLI
from domain.rollouts import Stage
from domain.selectors import SelectorSpec
from domain.services import GpuService


class ResourceInventory(msgspec.Struct, frozen=True, omit_defaults=True):
    """Capacity of one node (or the cluster) of one kind of resource; input of a ledger factory.

    ``capacity`` is in milli-units, for memory in bytes. ``groups`` lists unit ids by locality, for
    CPU one list of core ids per NUMA node, for GPUs one list per node; empty where units have no
    identity.
    """

    capacity: int
    groups: tuple[tuple[int, ...], ...] = ()
    #: More units are declared than the hardware has: for tests and demos; every page shows it.
    oversubscribed: bool = False
    #: Limits over time, for cluster-wide resources.
    limits: Limits = Limits()
    #: Units that must not be granted: a GPU that failed, or that another program uses.
    unhealthy: tuple[int, ...] = ()
    #: Units beside the capacity that are never granted exclusively: cores of Tangram's own processes
    #: and of light actions.
    shared_units: tuple[int, ...] = ()
    #: Amount of light actions on the shared units, beside the capacity.
    shared_capacity: int = 0
    #: Amount of light actions that run on the units of the capacity, beside it: with a lower weight
    #: than the holders of these units.
    yielding_capacity: int = 0
    #: Memory of each unit, for GPUs; 0 where it is not declared.
    memory_bytes: int = 0
    #: Host memory that GPU services of the node may take; None: no limit.
    host_memory_bytes: int | None = None
    #: Services in GPU memory when the node joins.
    residents: tuple[Home, ...] = ()
    #: The backends whose seats it counts, for ``llm:POOL``; None: it counts its capacity alone.
    backends: BackendPool | None = None


class NodeInventory(msgspec.Struct, frozen=True, omit_defaults=True):
    """Inventory that a node worker reports when it joins."""

    name: str
    #: Identity of the node's state directory; it changes with the directory.
    identity: str
    #: Counts the starts of node workers on this identity.
    incarnation: int
    pool: str
    #: ``cpu``, ``memory`` and what third-party managers bring.
    resources: dict[str, ResourceInventory]
    #: Isolation of commands: ``bwrap`` or ``process``.
    isolation: str = "process"
    hostname: str = ""
    version: str = ""
    #: What the driver of commands protects; None: reported by a worker of an earlier version.
    protection: Protection | None = None
    #: It forks environments.
    forks: bool = False
    #: It keeps prepared environments.
    warms: bool = False
    #: It moves idle environments to other nodes, and takes those of others.
    moves: bool = False


#: Default times without a heartbeat until a node is lost, and until it is dead.
NODE_GRACE_SECONDS = 60.0
NODE_DEAD_SECONDS = 600.0


class PoolConfig(msgspec.Struct, frozen=True, omit_defaults=True):
    """A set of nodes with one queue and one policy."""

    name: str
    #: Journals omit this default, so it must never change. New pools have
    #: `domain.policies.DEFAULT_POLICY`.
    policy: str = "minimum"
    #: Queued actions stay queued; running ones continue.
    paused: bool = False
    #: Actions that name no ``cpu`` run on shared cores where their family's history says so.
    light_by_default: bool = True
    #: Times without a heartbeat for its nodes; None: those of the whole configuration.
    node_grace_seconds: float | None = None
    node_dead_seconds: float | None = None
    #: Kind (``cpu``) → project → its share of all nodes of the pool together.
    shares: dict[str, dict[str, Share]] = {}
    #: None in journals of earlier versions, which run commands on any node: ``off``.
    sandbox: SandboxRule | None = None
    #: Environments may use the network of their node; None: as in earlier versions, they may.
    host_network: bool | None = None
    #: What environments with ``network: egress`` reach; None: the pool has no such network.
    egress: EgressRules | None = None
    #: Prepared environments of each node, image → number; ``""`` is no image.
    warm: dict[str, int] = {}
    #: Elastic calls of GPU services get one count, the best for recent calls, where the policy caps
    #: grants. False in journals of earlier versions, which chose for each call.
    steady_counts: bool = False
    #: Shadow pools choose that count, and shorter calls precede longer ones. False in journals of earlier versions, which
    #: replayed batches of calls and served each service's calls by arrival.
    shadow_pools: bool = False
    #: Idle environments leave a node that lets its trajectories finish. False in journals of earlier versions, which left them there.
    move_environments: bool = False
    #: An action that waits for its node moves with its environment to a node with room. False in journals of earlier versions, where it waited.
    rebalance_environments: bool = False
    #: They also go to a node that has what their actions have needed so far. False in journals of earlier versions, which asked for all
    #: resources of the former node.
    move_to_smaller: bool = False
    #: With shares, a cycle scans again when running actions became narrower. False in journals of earlier versions, which left these
    #: units free until the next event.
    scan_after_shrinking: bool = False

    @property
    def needs_sandbox(self) -> bool:
        """Whether nodes without a sandbox get no actions."""
        return self.sandbox == REQUIRED

    @property
    def networks(self) -> tuple[str, ...]:
        """Networks that environments of the pool may name."""
        found = [NETWORK_NONE]
        if self.host_network is not False:
            found.append(NETWORK_HOST)
        if self.needs_sandbox and self.egress is not None and self.egress.hosts:
            found.append(NETWORK_EGRESS)
        return tuple(found)


#: Stages of rollouts that run at once on a fresh installation.
STAGE_SLOTS: Final = {Stage.INIT: 64, Stage.RUN: 256, Stage.EVAL: 64}


class ProjectConfig(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tenant: owns tasks and tokens."""

    name: str
    default_pool: str = "default"
    #: Instead of the limits of the installation.
    limits: ProjectBounds = ProjectBounds()


class Config(msgspec.Struct, frozen=True, omit_defaults=True):
    """One revision of the whole configuration.

    ``resources`` are cluster-wide counted ones (``api:search`` → milli-units that may be held at
    once). Nodes bring their own resources when they join.
    """

    revision: int = 0
    projects: dict[str, ProjectConfig] = {}
    pools: dict[str, PoolConfig] = {}
    resources: dict[str, int] = {}
    #: Limits over time, by resource.
    limits: dict[str, Limits] = {}
    #: Resource → project → its share.
    shares: dict[str, dict[str, Share]] = {}
    #: Those that are called for trainers (kind ``call``), by the name of their resource.
    apis: dict[str, ApiConfig] = {}
    #: Models that are called as ``service:<name>``, by their name.
    services: dict[str, GpuService] = {}
    #: Fleets that are called as ``fleet:<name>``, by their name.
    fleets: dict[str, FleetSpec] = {}
    #: Selectors of parallelism, by their name.
    selectors: dict[str, SelectorSpec] = {}
    #: Node workers that engines of the cluster place, by the name of the group.
    node_groups: dict[str, NodeGroupSpec] = {}
    #: Nodes that take no new actions.
    drained_nodes: frozenset[str] = frozenset()
    #: Those of them whose open trajectories continue: only new ones go elsewhere.
    finishing_nodes: frozenset[str] = frozenset()
    #: A silent node's actions become ``unknown`` after this long (I5).
    node_grace_seconds: float = NODE_GRACE_SECONDS
    #: It is dead after this long: its trajectories end, although their environments may still be there.
    node_dead_seconds: float = NODE_DEAD_SECONDS

    def grace_of(self, pool: str) -> float:
        """Return the seconds without a heartbeat until a node of ``pool`` loses its actions."""
        own = self.pools[pool].node_grace_seconds if pool in self.pools else None
        return self.node_grace_seconds if own is None else own

    def death_of(self, pool: str) -> float:
        """Return the seconds without a heartbeat until a node of ``pool`` is dead."""
        own = self.pools[pool].node_dead_seconds if pool in self.pools else None
        return self.node_dead_seconds if own is None else own

    def inventory(self, resource: str) -> ResourceInventory:
        """Return the inventory of a cluster-wide resource; capacity 0 if it is not declared."""
        limits = self.limits.get(resource, Limits())
        return ResourceInventory(self.resources.get(resource, 0), limits=limits)

    def most(self, resource: str) -> int | None:
        """Return the most milli-units that one action can get; None: not declared."""
        capacity = self.resources.get(resource)
        if capacity is None or resource not in self.limits:
            return capacity
        return min((capacity, *(quota.amount for quota in self.limits[resource].quotas)))


def default_config() -> Config:
    """Return the configuration of a fresh installation: one project, one pool."""
    return Config(
        revision=0,
        projects={"default": ProjectConfig("default")},
        pools={
            "default": PoolConfig(
                "default",
                DEFAULT_POLICY,
                steady_counts=True,
                shadow_pools=True,
                move_environments=True,
                rebalance_environments=True,
                move_to_smaller=True,
                scan_after_shrinking=True,
            )
        },
        resources={
            "api:demo": 8 * MILLI,
            **{f"stage:{stage}": count * MILLI for stage, count in STAGE_SLOTS.items()},
        },
    )
