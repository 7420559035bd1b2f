"""The hardware that is simulated, as nodes that join, and the configuration they join under."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from domain.errors import InvalidRequest
from domain.inventory import Config, NodeInventory, PoolConfig, ProjectConfig, ResourceInventory
from domain.resources import MILLI
from simulator.gpus import GPUS_PER_NODE, DeclaredModel, GpuModel, Restorable

GIB = 2**30
POOL = "default"
PROJECT = "default"
#: A restore that was never measured, as `scheduler.core.residency.policy.RestoreTimes` expects it.
RESTORE_SECONDS = 1.0


@dataclass(frozen=True)
class LargerCluster:
    """What a smaller cluster stands for: limits that are of nodes or of a control plane shrink with it."""

    nodes: int
    #: The smaller one has this share of its cores.
    share: float


@dataclass(frozen=True)
class Cluster:
    """Equal nodes in one pool, GPUs on the first of them, and cluster-wide limits.

    Defaults: the CPU cluster of ARL-Tangram §6.1, 15 nodes with 256 cores and 2.4 TB each.
    """

    nodes: int = 15
    cores: int = 256
    memory_bytes: int = 2_400 * GIB
    #: Cluster-wide resource (``api:search``) → units that may be held at once.
    apis: dict[str, int] = field(default_factory=dict)
    #: GPUs of all nodes together; each node is filled with eight before the next one.
    gpus: int = 0
    gpu_memory_bytes: int = 80 * GIB
    #: What is served on them, by name.
    models: dict[str, GpuModel] = field(default_factory=dict)
    #: What is declared, instead of one project and the fields above; its restores take so long.
    declared: Config | None = None
    restores: dict[str, float] = field(default_factory=dict)
    #: What each node has, by name, instead of equal nodes.
    machines: dict[str, dict[str, ResourceInventory]] = field(default_factory=dict)
    #: The cluster that this one stands for, where it is a small copy of it.
    stands_for: LargerCluster | None = None
    #: Cluster-wide resource → milli-units of each of its quotas that count before anything is granted.
    used: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in (("nodes", self.nodes), ("cores", self.cores)):
            if value < 1:
                raise InvalidRequest(f"{name} must be at least 1, not {value}")
        if not self.machines and not 0 <= self.gpus <= self.nodes * GPUS_PER_NODE:
            most = self.nodes * GPUS_PER_NODE
            raise InvalidRequest(f"gpus of {self.nodes} nodes are 0 to {most}, not {self.gpus}")
        for name, value in self.apis.items():
            if value < 1:
                raise InvalidRequest(f"{name}: the limit must be at least 1, not {value}")

    def capacity_milli(self) -> dict[str, int]:
        """Return what there is of each resource: all cores together, each cluster-wide limit."""
        limits = {name: units * MILLI for name, units in self.apis.items()}
        if self.machines:
            return {**self._of_machines("cpu"), **self._of_machines("gpu"), **limits}
        gpus = {"gpu": self.gpus * MILLI} if self.gpus else {}
        return {"cpu": self.nodes * self.cores * MILLI, **gpus, **limits}

    def _of_machines(self, kind: str) -> dict[str, int]:
        """Return what those that take work have of ``kind``; nothing where none has any."""
        drained = self.declared.drained_nodes if self.declared is not None else frozenset()
        taking = [have for name, have in self.machines.items() if name not in drained]
        total = sum(have[kind].capacity for have in taking if kind in have)
        return {kind: total} if total else {}

    def gpus_by_node(self) -> list[int]:
        """Return how many GPUs each node has."""
        return [
            max(0, min(GPUS_PER_NODE, self.gpus - number * GPUS_PER_NODE))
            for number in range(self.nodes)
        ]

    def config(self, policy: str) -> Config:
        """Return the configuration under which everything runs."""
        if self.declared is not None:
            pool = msgspec.structs.replace(self.declared.pools[POOL], policy=policy)
            return msgspec.structs.replace(self.declared, revision=1, pools={POOL: pool})
        return Config(
            revision=1,
            projects={PROJECT: ProjectConfig(PROJECT, POOL)},
            pools={POOL: PoolConfig(POOL, policy=policy, steady_counts=True, shadow_pools=True)},
            resources={name: units * MILLI for name, units in self.apis.items()},
            services={name: model.declared() for name, model in self.models.items()},
        )

    def served(self) -> dict[str, Restorable]:
        """Return what is served, for the nodes."""
        if self.declared is None:
            return dict(self.models)
        return {
            name: DeclaredModel(spec, self.restores.get(name, RESTORE_SECONDS))
            for name, spec in self.declared.services.items()
        }

    def inventories(self) -> list[NodeInventory]:
        """Return the nodes as they introduce themselves."""
        machines = self.machines or {
            f"n{number:03d}": {
                "cpu": ResourceInventory(self.cores * MILLI),
                "memory": ResourceInventory(self.memory_bytes),
                **self._gpu_inventory(gpus),
            }
            for number, gpus in enumerate(self.gpus_by_node())
        }
        return [
            NodeInventory(name, f"simulated-{name}", 1, POOL, have, isolation="simulated")
            for name, have in machines.items()
        ]

    def _gpu_inventory(self, gpus: int) -> dict[str, ResourceInventory]:
        if not gpus:
            return {}
        units = (tuple(range(gpus)),)
        memory = self.gpu_memory_bytes
        return {"gpu": ResourceInventory(gpus * MILLI, units, memory_bytes=memory)}
