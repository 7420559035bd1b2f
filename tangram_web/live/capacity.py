"""Who holds what, as the grants say: cores by number, everything else by amount.

Holdings are kept by resource and core number, apart from the inventories: a grant may be folded
before the node's introduction (the journal was trimmed between them), and a node may come back
with other cores while its actions go on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from domain.allocation import Allocation
from domain.ids import ResourceId, TrajectoryKey, node_resource
from domain.inventory import Config, NodeInventory, ResourceInventory
from domain.resources import MILLI

#: A core's byte: 0 free, below OTHERS so many light holders, EXCLUSIVE one holder.
EXCLUSIVE: Final = 255


#: In a map of one project: the core is of no use to it, others hold it.
OTHERS: Final = EXCLUSIVE - 1


class _Cores:
    """Holders of one node's cores."""

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


class NodeStanding:
    """One node: what it introduced itself with, and whether it shows life."""

    def __init__(self, inventory: NodeInventory) -> None:
        self.inventory = inventory
        self.lost = False
        #: GPUs whose memory did not become free, beyond those it came with.
        self.stuck: set[int] = set()
        cpu = inventory.resources.get("cpu", ResourceInventory(capacity=0))
        self.groups = cpu.groups or (tuple(range(cpu.capacity // MILLI)),)
        self.cpu = cpu
        self.memory_bytes = inventory.resources.get("memory", ResourceInventory(0)).capacity

    @property
    def gpus(self) -> dict[str, Any]:
        """What it has of GPUs; without groups when it has none."""
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
    """Nodes, their cores and environments, and the amounts held of every resource."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeStanding] = {}
        self.config = Config()
        self.held: Counter[ResourceId] = Counter()
        #: How many actions share a chunk of GPUs.
        self._together: Counter[tuple[ResourceId, tuple[int, ...]]] = Counter()
        self._cores: dict[str, _Cores] = {}
        #: Where a trajectory's environment is, and the bytes it reserves there.
        self._environments: dict[TrajectoryKey, tuple[str, int]] = {}

    def join(self, inventory: NodeInventory) -> None:
        """Enter a node's introduction; a new identity has no environments of the old one."""
        known = self.nodes.get(inventory.name)
        if known is not None and known.inventory.identity != inventory.identity:
            for key, (node, _) in list(self._environments.items()):
                if node == inventory.name:
                    del self._environments[key]
        self.nodes[inventory.name] = NodeStanding(inventory)

    def forget(self, name: str) -> None:
        """Strike a node out with all that is on it; an unknown one is not an error."""
        node = self.nodes.pop(name, None)
        for kind in () if node is None else node.inventory.resources:
            self.held.pop(node_resource(kind, name), None)
        self._cores.pop(name, None)
        for key, (place, _) in list(self._environments.items()):
            if place == name:
                del self._environments[key]

    def hold(self, node: str | None, allocations: tuple[Allocation, ...], by: int = 1) -> None:
        """Enter (``by`` 1) or strike out (-1) what an action holds."""
        for allocation in allocations:
            resource = allocation.resource
            if self._counts(allocation, by):
                self.held[resource] += by * allocation.amount
            if self.held[resource] == 0:
                del self.held[resource]
            if node is not None and allocation.units and resource.startswith("cpu:"):
                self._cores.setdefault(node, _Cores()).change(allocation, by)

    def _counts(self, allocation: Allocation, by: int) -> bool:
        """Say whether it is the first on its units or the last: a chunk that some share counts once."""
        if not allocation.shared or allocation.hosting is None:
            return True
        chunk = (allocation.resource, allocation.units)
        before = self._together[chunk]
        self._together[chunk] += by
        if self._together[chunk] == 0:
            del self._together[chunk]
        return before == 0 or before + by == 0

    def part(self, project: str) -> Capacity:
        """Return the same nodes with a project's environments on them, and nothing held."""
        part = Capacity()
        part.nodes, part.config = dict(self.nodes), self.config
        mine = f"{project}/"
        environments = self._environments.items()
        part._environments = {key: held for key, held in environments if key.startswith(mine)}
        return part

    def place(self, key: TrajectoryKey, node: str, memory_bytes: int) -> None:
        """Enter a trajectory's environment where its first command was granted."""
        self._environments.setdefault(key, (node, memory_bytes))

    def remove_environment(self, key: TrajectoryKey) -> None:
        """Strike an environment out; an unknown one is not an error."""
        self._environments.pop(key, None)

    def cores_of(self, pool: str | None = None) -> tuple[float, float]:
        """Return cores held and there, of one pool or of all nodes that show life."""
        held = there = 0
        for name, node in self.nodes.items():
            if not node.lost and pool in (None, node.inventory.pool):
                held += self.held[node_resource("cpu", name)]
                there += node.cpu.capacity
        return held / MILLI, there / MILLI

    @property
    def has_gpus(self) -> bool:
        """Whether any node offers GPUs."""
        return any("gpu" in node.inventory.resources for node in self.nodes.values())

    def cluster_resources(self) -> list[dict[str, Any]]:
        """Return the counted resources that belong to no node."""
        return [
            {"name": name, "held": self.held[ResourceId(name)] / MILLI, "capacity": there / MILLI}
            for name, there in sorted(self.config.resources.items())
        ]

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per node, by pool and name."""
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
        cores = self._cores.get(name) or _Cores()
        return {
            "name": name,
            "pool": inventory.pool,
            "state": self._state(name, node),
            "isolation": inventory.isolation,
            "hostname": inventory.hostname,
            "version": inventory.version,
            "oversubscribed": node.cpu.oversubscribed,
            "cores_held": self.held[node_resource("cpu", name)] / MILLI,
            "cores_total": node.cpu.capacity / MILLI,
            "cores": cores.as_bytes(node.cores),
            "groups": [as_ranges(group) for group in node.groups],
            "memory_held_bytes": reserved_bytes + self.held[node_resource("memory", name)],
            "memory_total_bytes": node.memory_bytes,
            "environments": environments,
            "gpus": node.gpus,
        }

    def _state(self, name: str, node: NodeStanding) -> str:
        if node.lost:
            return "lost"
        return "drained" if name in self.config.drained_nodes else "ready"


def as_ranges(numbers: tuple[int, ...]) -> str:
    """Write core numbers as the kernel does: ``0-3,8``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)
