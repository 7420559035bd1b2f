"""What a launcher's tests need of its engine."""

from __future__ import annotations

from typing import Protocol

from domain.node_groups import NodeGroupSpec
from managers.launch.launcher import Instance, NodeLauncher


class Harness(Protocol):
    """One running engine; each test uses names of its own."""

    #: Of the groups that are launched.
    spec: NodeGroupSpec
    #: Whether the engine restarts an instance that died; else it is listed as failed, or not any more.
    restarts: bool

    def launcher(self) -> NodeLauncher:
        """Return another launcher of the engine, as another keeper would make it."""

    def kill(self, instance: Instance) -> None:
        """Kill the process of a running instance, as the kernel does."""

    def unreachable(self) -> NodeLauncher:
        """Return a launcher whose engine does not answer."""
