"""Capacity of nodes and what actions hold of it: cores by number, other resources by amount.

Holdings are kept by resource and core number, apart from the inventories: a grant may be folded
before its node joins (the journal was trimmed between them), and a node may rejoin with other cores
while its actions run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from domain.allocation import Allocation
from domain.confinement import can_sandbox, why_refused
from domain.ids import ResourceId, TrajectoryKey, node_resource
from domain.inventory import Config, NodeInventory, ResourceInventory
from domain.resources import MILLI
from tangram_web.live.losses import Losses, alarm_of

#: Byte of a core in the map: 0 free, up to `OTHERS` - 1 the number of light actions that share it,
#: `EXCLUSIVE` one holder.
EXCLUSIVE: Final = 255
#: In the map of one project: other projects hold the core.
OTHERS: Final = EXCLUSIVE - 1


class _HeldCores:
    """Number of actions that hold each core of one node."""

    def __init__(self) -> None:
        self.exclusive: Counter[int] = Counter()
        self.shared: Counter[int] = Counter()

    def change(self, allocation: Allocation, by: int) -> None:
        holders = self.shared if allocation.shared else self.exclusive
        for core in allocation.units:
            holders[core] += by
            if holders[core] == 0:
                del holders[core]

    def as_bytes(self, cores: Iterable[int]) -> bytes:
        return bytes(
            EXCLUSIVE if core in self.exclusive else min(self.shared[core], OTHERS - 1)
            for core in cores
        )


class NodeCapacity:
    """One node: the inventory that it joined with, and its health."""

    def __init__(self, inventory: NodeInventory) -> None:
        self.inventory = inventory
        self.lost = False
        #: Why it takes no new work by its own report; empty while it does.
        self.refuses = ""
        #: GPUs whose memory did not become free, beyond those that were unhealthy when it joined.
        self.stuck: set[int] = set()
        cpu = inventory.resources.get("cpu", ResourceInventory(capacity=0))
        self.groups = cpu.groups or (tuple(range(cpu.capacity // MILLI)),)
        self.cpu = cpu
        self.memory_bytes = inventory.resources.get("memory", ResourceInventory(0)).capacity

    @property
    def gpus(self) -> dict[str, Any]:
        """Its GPUs; without groups when it has none."""
        gpu = self.inventory.resources.get("gpu", ResourceInventory(capacity=0))
        return {
            "groups": [as_ranges(group) for group in gpu.groups],
            "unhealthy": sorted({*gpu.unhealthy, *self.stuck}),
            "memory_bytes": gpu.memory_bytes,
            "oversubscribed": gpu.oversubscribed,
        }

    @property
    def cores(self) -> Iterable[int]:
        """Core numbers in the order of the map."""
        return (core for group in self.groups for core in group)


class Capacity:
    """Nodes, their cores and environments, and the held amount of each resource."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeCapacity] = {}
        #: The latest loss of each node.
        self.losses = Losses()
        self.config = Config()
        self.held: Counter[ResourceId] = Counter()
        #: Actions that share a chunk of GPUs.
        self._sharing: Counter[tuple[ResourceId, tuple[int, ...]]] = Counter()
        #: Amount that light actions hold, by resource.
        self._light: Counter[ResourceId] = Counter()
        #: Amount of light actions that run beside the capacity, on cores of others.
        self._yielding: Counter[ResourceId] = Counter()
        self._cores: dict[str, _HeldCores] = {}
        #: Trajectory → node of its environment, and the bytes that it reserves there.
        self._environments: dict[TrajectoryKey, tuple[str, int]] = {}

    def join(self, inventory: NodeInventory) -> None:
        """Add a node that joins; one with a new identity has no environments of the old one."""
        known = self.nodes.get(inventory.name)
        if known is not None and known.inventory.identity != inventory.identity:
            self._forget_environments(inventory.name)
        self.nodes[inventory.name] = NodeCapacity(inventory)

    def forget(self, name: str) -> None:
        """Remove a node with its holdings and environments; an unknown one is not an error."""
        node = self.nodes.pop(name, None)
        self.losses.forget(name)
        for kind in () if node is None else node.inventory.resources:
            self.held.pop(node_resource(kind, name), None)
            self._light.pop(node_resource(kind, name), None)
            self._yielding.pop(node_resource(kind, name), None)
        self._cores.pop(name, None)
        self._forget_environments(name)

    def _forget_environments(self, name: str) -> None:
        for key, (node, _) in list(self._environments.items()):
            if node == name:
                del self._environments[key]

    def hold(self, node: str | None, allocations: tuple[Allocation, ...], by: int = 1) -> None:
        """Add (``by`` 1) or remove (-1) the holdings of an action."""
        for allocation in allocations:
            resource = allocation.resource
            if self._changes_amount(allocation, by):
                self.held[resource] += by * allocation.amount
            if self.held[resource] == 0:
                del self.held[resource]
            if allocation.yields:
                self._yielding[resource] += by * allocation.amount
            elif allocation.shared and resource.startswith("cpu:"):
                self._light[resource] += by * allocation.amount
            if node is not None and allocation.units and resource.startswith("cpu:"):
                self._cores.setdefault(node, _HeldCores()).change(allocation, by)

    def _changes_amount(self, allocation: Allocation, by: int) -> bool:
        """Return whether the held amount changes: a chunk that actions share counts once."""
        if not allocation.shared or allocation.hosting is None:
            return True
        chunk = (allocation.resource, allocation.units)
        before = self._sharing[chunk]
        self._sharing[chunk] += by
        if self._sharing[chunk] == 0:
            del self._sharing[chunk]
        return before == 0 or before + by == 0

    def for_project(self, project: str) -> Capacity:
        """Return the same nodes with the environments of one project, and nothing held."""
        own = Capacity()
        own.nodes, own.config = dict(self.nodes), self.config
        environments = self._environments.items()
        own._environments = {
            key: held for key, held in environments if key.startswith(f"{project}/")
        }
        return own

    def environments_on(self, name: str) -> int:
        """Return the number of environments on a node."""
        return sum(node == name for node, _ in self._environments.values())

    def place_environment(self, key: TrajectoryKey, node: str, memory_bytes: int) -> None:
        """Add a trajectory's environment on the node of its first command."""
        self._environments.setdefault(key, (node, memory_bytes))

    def move_environment(self, key: TrajectoryKey, node: str) -> None:
        """Record that a trajectory's environment is on another node; an unknown one is not an error."""
        if (known := self._environments.get(key)) is not None:
            self._environments[key] = (node, known[1])

    def remove_environment(self, key: TrajectoryKey) -> None:
        """Remove an environment; an unknown one is not an error."""
        self._environments.pop(key, None)

    def cores_of(self, pool: str | None = None) -> tuple[float, float]:
        """Return held and total cores, of one pool or of all; lost nodes do not count."""
        held = total = 0
        for node in self.nodes.values():
            if not node.lost and pool in (None, node.inventory.pool):
                held += self._held_of(node)
                total += node.cpu.capacity
        return held / MILLI, total / MILLI

    def lost_cores(self, pool: str | None = None) -> float:
        """Return the cores of lost nodes, of one pool or of all."""
        lost = (node for node in self.nodes.values() if node.lost)
        return sum(n.cpu.capacity for n in lost if pool in (None, n.inventory.pool)) / MILLI

    def gpus_of(self, pool: str) -> dict[str, float]:
        """Return held, usable and lost GPUs of a pool."""
        held = total = lost = 0.0
        for name, node in self.nodes.items():
            gpu = node.inventory.resources.get("gpu")
            if gpu is None or node.inventory.pool != pool:
                continue
            usable = gpu.capacity / MILLI - len({*gpu.unhealthy, *node.stuck})
            if node.lost:
                lost += usable
            else:
                total += usable
                held += self.held[node_resource("gpu", name)] / MILLI
        return {"held": held, "total": total, "lost": lost}

    def quarantined(self) -> list[str]:
        """Return the GPU services that are in quarantine."""
        return sorted(name for name, each in self.config.services.items() if each.quarantined)

    def _held_of(self, node: NodeCapacity) -> int:
        """Return the held part of the capacity: light actions on shared cores are beside it."""
        resource = node_resource("cpu", node.inventory.name)
        light = min(self._light[resource], node.cpu.shared_capacity)
        return self.held[resource] - light - self._yielding[resource]

    @property
    def has_gpus(self) -> bool:
        """Whether any node offers GPUs."""
        return any("gpu" in node.inventory.resources for node in self.nodes.values())

    def cluster_resources(self) -> list[dict[str, Any]]:
        """Return the counted resources of the whole cluster."""
        return [
            {"name": name, "held": self.held[ResourceId(name)] / MILLI, "capacity": total / MILLI}
            for name, total in sorted(self.config.resources.items())
        ]

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per node, in order of pool and name."""
        reserved: Counter[str] = Counter()
        environments: Counter[str] = Counter()
        for node, memory_bytes in self._environments.values():
            reserved[node] += memory_bytes
            environments[node] += 1
        order = sorted(self.nodes, key=lambda name: (self.nodes[name].inventory.pool, name))
        return [self._row(name, reserved[name], environments[name]) for name in order]

    def _row(self, name: str, reserved_bytes: int, environments: int) -> dict[str, Any]:
        node = self.nodes[name]
        inventory = node.inventory
        cores = self._cores.get(name) or _HeldCores()
        return {
            "name": name,
            "pool": inventory.pool,
            "state": self._state(name, node),
            "drained": name in self.config.drained_nodes,
            "finishing": name in self.config.finishing_nodes,
            "isolation": inventory.isolation,
            "hindrance": node.refuses or self._hindrance(inventory),
            "hostname": inventory.hostname,
            "version": inventory.version,
            "oversubscribed": node.cpu.oversubscribed,
            "cores_held": self._held_of(node) / MILLI,
            "cores_total": node.cpu.capacity / MILLI,
            "cores_kept": len(node.cpu.shared_units),
            "cores": cores.as_bytes(node.cores),
            "groups": [as_ranges(group) for group in node.groups],
            "memory_held_bytes": reserved_bytes + self.held[node_resource("memory", name)],
            "memory_total_bytes": node.memory_bytes,
            "environments": environments,
            "gpus": node.gpus,
            **self._loss(name, node),
        }

    def _loss(self, name: str, node: NodeCapacity) -> dict[str, Any]:
        """Return the latest loss of a node, and the banner while work hangs on it."""
        loss, pool = self.losses.of(name), node.inventory.pool
        if loss is None:
            return {}
        others = sum(
            not other.lost and other.inventory.pool == pool and at not in self.config.drained_nodes
            for at, other in self.nodes.items()
        )
        alarm = alarm_of(name, pool, loss, others) if node.lost else ""
        return {"loss": loss.row(), "alarm": alarm}

    def _hindrance(self, inventory: NodeInventory) -> str:
        """Return why a ready node gets no actions; empty: nothing hinders it."""
        pool = self.config.pools.get(inventory.pool)
        if pool is None or not pool.needs_sandbox:
            return ""
        confined = can_sandbox(inventory.isolation, inventory.protection)
        return "" if confined else why_refused(inventory.pool)

    def _state(self, name: str, node: NodeCapacity) -> str:
        if node.lost:
            return "lost"
        return "drained" if name in self.config.drained_nodes else "ready"


def as_ranges(numbers: tuple[int, ...]) -> str:
    """Return unit numbers in the kernel's notation: ``0-3,8``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def numbers_in(ranges: str) -> list[int]:
    """Return the unit numbers of ranges as `as_ranges` writes them."""
    pairs = [part.partition("-") for part in ranges.split(",") if part]
    return [number for low, _, high in pairs for number in range(int(low), int(high or low) + 1)]
