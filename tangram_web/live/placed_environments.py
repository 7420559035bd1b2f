"""Environments of trajectories by node: how many each node has, and the memory that they reserve.

A trajectory has at most one environment, on the node of its first command. Both directions are indexed, so that the loss of
many nodes at once costs what these nodes have, whatever the number of trajectories.
"""

from __future__ import annotations

from collections import defaultdict

from domain.ids import TrajectoryKey


class PlacedEnvironments:
    """The environments that exist, and where."""

    def __init__(self) -> None:
        self._node_of: dict[TrajectoryKey, str] = {}
        #: Node → trajectory → bytes that its environment reserves there.
        self._on: defaultdict[str, dict[TrajectoryKey, int]] = defaultdict(dict)

    def place(self, key: TrajectoryKey, node: str, memory_bytes: int) -> None:
        """Add an environment; one that exists stays where it is."""
        if key not in self._node_of:
            self._node_of[key] = node
            self._on[node][key] = memory_bytes

    def move(self, key: TrajectoryKey, node: str) -> None:
        """Record that an environment is on another node; an unknown one is not an error."""
        before = self._node_of.get(key)
        if before is not None:
            memory_bytes = self._on[before][key]
            self.remove(key)
            self.place(key, node, memory_bytes)

    def remove(self, key: TrajectoryKey) -> None:
        """Remove an environment; an unknown one is not an error."""
        node = self._node_of.pop(key, None)
        if node is not None:
            del self._on[node][key]
            if not self._on[node]:
                del self._on[node]

    def forget_node(self, node: str) -> None:
        """Remove the environments of a node."""
        for key in self._on.pop(node, ()):
            del self._node_of[key]

    def on(self, node: str) -> int:
        """Return the number of environments on a node."""
        return len(self._on.get(node, ()))

    def reserved_bytes(self, node: str) -> int:
        """Return the memory that the environments on a node reserve."""
        return sum(self._on.get(node, {}).values())

    def of_project(self, project: str) -> PlacedEnvironments:
        """Return a copy with the environments of one project."""
        own, prefix = PlacedEnvironments(), f"{project}/"
        for key, node in self._node_of.items():
            if key.startswith(prefix):
                own.place(key, node, self._on[node][key])
        return own
