"""The hardware that is simulated, as nodes that join, and the configuration they join under."""

from __future__ import annotations

from dataclasses import dataclass, field

from domain.errors import InvalidRequest
from domain.inventory import Config, NodeInventory, PoolConfig, ProjectConfig, ResourceInventory
from domain.resources import MILLI
from domain.services import GpuService

GIB = 2**30
POOL = "default"
PROJECT = "default"


@dataclass(frozen=True)
class Cluster:
    """Equal nodes in one pool, cluster-wide limits, and GPU services.

    Defaults: the CPU cluster of ARL-Tangram §6.1, 15 nodes with 256 cores and 2.4 TB each.
    """

    nodes: int = 15
    cores: int = 256
    memory_bytes: int = 2_400 * GIB
    #: Cluster-wide resource (``api:search``) → units that may be held at once.
    apis: dict[str, int] = field(default_factory=dict)
    #: GPUs of each node, and the memory of each of them.
    gpus: int = 0
    gpu_memory_bytes: int = 80 * GIB
    services: dict[str, GpuService] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in (("nodes", self.nodes), ("cores", self.cores)):
            if value < 1:
                raise InvalidRequest(f"{name} must be at least 1, not {value}")
        for name, value in self.apis.items():
            if value < 1:
                raise InvalidRequest(f"{name}: the limit must be at least 1, not {value}")

    def capacity_milli(self) -> dict[str, int]:
        """Return what there is: all cores together, all GPUs, each cluster-wide limit."""
        limits = {name: units * MILLI for name, units in self.apis.items()}
        if self.gpus:
            limits["gpu"] = self.nodes * self.gpus * MILLI
        return {"cpu": self.nodes * self.cores * MILLI, **limits}

    def config(self, policy: str) -> Config:
        """Return the configuration under which everything runs."""
        return Config(
            revision=1,
            projects={PROJECT: ProjectConfig(PROJECT, POOL)},
            pools={POOL: PoolConfig(POOL, policy=policy)},
            resources={name: units * MILLI for name, units in self.apis.items()},
            services=self.services,
        )

    def inventories(self) -> list[NodeInventory]:
        """Return the nodes as they introduce themselves."""
        return [
            NodeInventory(
                name=f"n{number:03d}",
                identity=f"simulated-{number:03d}",
                incarnation=1,
                pool=POOL,
                resources=self._of_a_node(),
                isolation="simulated",
            )
            for number in range(self.nodes)
        ]

    def _of_a_node(self) -> dict[str, ResourceInventory]:
        resources = {
            "cpu": ResourceInventory(self.cores * MILLI),
            "memory": ResourceInventory(self.memory_bytes),
        }
        if self.gpus:
            gpus = tuple(range(self.gpus))
            resources["gpu"] = ResourceInventory(
                self.gpus * MILLI, (gpus,), memory_bytes=self.gpu_memory_bytes
            )
        return resources
