"""The hardware that is simulated, as nodes that join, and the configuration they join under."""

from __future__ import annotations

from dataclasses import dataclass, field

from domain.errors import InvalidRequest
from domain.inventory import Config, NodeInventory, PoolConfig, ProjectConfig, ResourceInventory
from domain.resources import MILLI
from simulator.gpus import GPUS_PER_NODE, GpuModel

GIB = 2**30
POOL = "default"
PROJECT = "default"


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

    def __post_init__(self) -> None:
        for name, value in (("nodes", self.nodes), ("cores", self.cores)):
            if value < 1:
                raise InvalidRequest(f"{name} must be at least 1, not {value}")
        if not 0 <= self.gpus <= self.nodes * GPUS_PER_NODE:
            most = self.nodes * GPUS_PER_NODE
            raise InvalidRequest(f"gpus of {self.nodes} nodes are 0 to {most}, not {self.gpus}")
        for name, value in self.apis.items():
            if value < 1:
                raise InvalidRequest(f"{name}: the limit must be at least 1, not {value}")

    def capacity_milli(self) -> dict[str, int]:
        """Return what there is of each resource: all cores together, each cluster-wide limit."""
        limits = {name: units * MILLI for name, units in self.apis.items()}
        gpus = {"gpu": self.gpus * MILLI} if self.gpus else {}
        return {"cpu": self.nodes * self.cores * MILLI, **gpus, **limits}

    def gpus_by_node(self) -> list[int]:
        """Return how many GPUs each node has."""
        return [
            max(0, min(GPUS_PER_NODE, self.gpus - number * GPUS_PER_NODE))
            for number in range(self.nodes)
        ]

    def config(self, policy: str) -> Config:
        """Return the configuration under which everything runs."""
        return Config(
            revision=1,
            projects={PROJECT: ProjectConfig(PROJECT, POOL)},
            pools={POOL: PoolConfig(POOL, policy=policy)},
            resources={name: units * MILLI for name, units in self.apis.items()},
            services={name: model.declared() for name, model in self.models.items()},
        )

    def inventories(self) -> list[NodeInventory]:
        """Return the nodes as they introduce themselves."""
        return [
            NodeInventory(
                name=f"n{number:03d}",
                identity=f"simulated-{number:03d}",
                incarnation=1,
                pool=POOL,
                resources={
                    "cpu": ResourceInventory(self.cores * MILLI),
                    "memory": ResourceInventory(self.memory_bytes),
                    **self._gpu_inventory(gpus),
                },
                isolation="simulated",
            )
            for number, gpus in enumerate(self.gpus_by_node())
        ]

    def _gpu_inventory(self, gpus: int) -> dict[str, ResourceInventory]:
        if not gpus:
            return {}
        units = (tuple(range(gpus)),)
        memory = self.gpu_memory_bytes
        return {"gpu": ResourceInventory(gpus * MILLI, units, memory_bytes=memory)}
