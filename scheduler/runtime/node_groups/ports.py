"""What the keeper of node groups needs from its composition root."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from contract.node_group_reports import NodeGroupEstimate
from contract.status import NodeLoad
from domain.node_groups import NodeGroupSpec
from managers.launch.launcher import NodeLauncher
from scheduler.runtime.node_groups.pool_sight import GroupSight


class NodeDrains(Protocol):
    """Drains of the configuration. All methods raise Unavailable."""

    async def reasons(self) -> Mapping[str, str]:
        """Return the reason of each drain, by node."""

    async def drain(self, node: str, reason: str) -> None:
        """Drain a node and let its trajectories finish; a node that is drained stays as it is."""

    async def resume(self, node: str) -> None:
        """End a drain."""


#: Makes the command line and the variables of a node worker. Raises LaunchError where its engine cannot reach this installation.
MakeWorkerCommand = Callable[[str, NodeGroupSpec], tuple[Sequence[str], Mapping[str, str]]]
#: Makes the launcher of an engine from the options of a group. Raises LaunchError, InvalidRequest.
FindLauncher = Callable[[str, Mapping[str, str]], NodeLauncher]
#: Returns what hangs on each node. Raises Unavailable.
NodeLoads = Callable[[], Awaitable[Mapping[str, NodeLoad]]]


class GroupSize(Protocol):
    """Decides on one group with bounds."""

    def decide(self, spec: NodeGroupSpec, sight: GroupSight, now: float) -> NodeGroupEstimate:
        """Return the number of nodes that the group should have now, and why; ``now``: a monotonic clock."""


#: Makes what decides on a group, by its name.
WantedNodes = Callable[[str], GroupSize]
