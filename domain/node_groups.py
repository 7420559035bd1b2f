"""Node groups: node workers of one shape, which an engine of the cluster places on its machines.

An *engine* places, restarts and health-checks processes: Ray, Slurm, Kubernetes, SSH, or this machine. Tangram grants
actions on the nodes that it holds there. An *instance* is one node worker of a group; its node is named ``<group>-<number>``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from domain.errors import InvalidRequest
from domain.resources import MILLI

#: Longest list of a group: each instance is listed by its engine every few seconds.
MOST_NODES: Final = 2000
#: What a GPU costs where no cost is declared, in cores.
CORES_OF_GPU: Final = 16
#: Of a node whose machine's memory is not declared.
_ENDLESS_BYTES: Final = 2**62
_Count = Annotated[int, Meta(ge=0, le=MOST_NODES)]


class NodeGroupSpec(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What an operator declares of a group."""

    #: Name of a launcher: ``ray``, ``slurm``, ``kubernetes``, ``ssh``, ``processes``.
    engine: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9-]{0,39}$")]
    pool: str = "default"
    #: Nodes, always; or the bounds between which their number follows what waits.
    count: _Count | None = None
    min_count: _Count = 0
    max_count: _Count | None = None
    #: Reserved on the engine, and offered by the node.
    cpus: Annotated[int, Meta(ge=1, le=4096)] = 1
    gpus: Annotated[int, Meta(ge=0, le=64)] = 0
    #: 0: nothing is reserved, and the node offers what the engine lets it use.
    memory_bytes: Annotated[int, Meta(ge=0)] = 0
    #: Of one node, in any unit; compared between groups of one pool with bounds, if all of them declare it. 0: by cores and GPUs.
    cost_per_hour: Annotated[float, Meta(ge=0)] = 0.0
    #: What a machine must have: custom resources of Ray, features of Slurm, labels of Kubernetes.
    labels: dict[str, str] = {}
    #: Image of the node worker, where the engine runs containers.
    image: str = ""
    #: As ``TANGRAM_NODE_ISOLATION``.
    isolation: str = "auto"
    #: A node is drained so long before the engine ends it.
    drain_seconds: Annotated[float, Meta(ge=0, le=86_400)] = 300.0
    #: While outdated nodes are replaced: so many more than wanted may exist, and so many fewer may take actions.
    max_surge: _Count = 1
    max_unavailable: _Count = 0
    #: Of the engine: address, partition, account, namespace, hosts …; its launcher checks them.
    options: dict[str, str] = {}

    @property
    def is_elastic(self) -> bool:
        """Whether the number of nodes follows what waits."""
        return self.count is None

    @property
    def can_have_nodes(self) -> bool:
        """Whether its bounds allow a node."""
        return bool(self.max_count if self.count is None else self.count)

    @property
    def size_cost(self) -> float:
        """Relative cost of a node by its size: of its cores, with a GPU as `CORES_OF_GPU` cores."""
        return float(self.cpus + CORES_OF_GPU * self.gpus)

    def within(self, wanted: int) -> int:
        """Return a number of nodes within what is declared."""
        if self.count is not None:
            return self.count
        return max(self.min_count, min(wanted, self.max_count or 0))


def capacities_of_groups(groups: Iterable[NodeGroupSpec], pool: str) -> list[dict[str, int]]:
    """Return what a node of each group of a pool offers, where its bounds allow one: what fits there can run, though no node has joined yet."""
    return [
        {
            "cpu": spec.cpus * MILLI,
            **({"gpu": spec.gpus * MILLI} if spec.gpus else {}),
            "memory": spec.memory_bytes or _ENDLESS_BYTES,
        }
        for spec in groups
        if spec.pool == pool and spec.can_have_nodes
    ]


def check_node_group(spec: NodeGroupSpec) -> None:
    """Check what the types do not. Raises InvalidRequest."""
    if spec.count is None and spec.max_count is None:
        raise InvalidRequest("give count, or min_count and max_count", pointer="/count")
    if spec.count is not None and (spec.max_count is not None or spec.min_count):
        raise InvalidRequest("count and bounds exclude each other", pointer="/count")
    if spec.max_count is not None and spec.max_count < spec.min_count:
        raise InvalidRequest("max_count is below min_count", pointer="/max_count")
    if not spec.max_surge and not spec.max_unavailable:
        raise InvalidRequest(
            "max_surge and max_unavailable are both 0, so no node could be replaced: give one of them at least 1",
            pointer="/max_surge",
        )
