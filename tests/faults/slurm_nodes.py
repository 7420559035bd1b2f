"""Node workers of a `System` as jobs of a Slurm, launched as a keeper does."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from domain.node_groups import NodeGroupSpec
from managers.launch.launcher import Instance, LaunchOrder
from managers.launch.plan import NodeWork, plan
from managers.launch.slurm_cluster import make
from tangram_web.supervisor import stack
from tests.faults.system import READY_WITHIN_SECONDS, System
from tests.slurm_cluster import SlurmCluster

_INSTALLATION: Final = "main"


class SlurmNodes:
    """The instances of one group."""

    def __init__(
        self, system: System, cluster: SlurmCluster, logs: Path, group: str = "cpu", **options: str
    ) -> None:
        self._system, self._cluster, self._logs, self._group = system, cluster, logs, group
        self.launcher = make({"conf": str(cluster.conf), "logs": str(logs), **options})
        self.spec = NodeGroupSpec("slurm", count=1, memory_bytes=2**30, drain_seconds=20.0)
        self._drained: set[str] = set()

    def another(self, group: str, **options: str) -> SlurmNodes:
        """Return another group of the same Tangram and Slurm."""
        return SlurmNodes(self._system, self._cluster, self._logs, group, **options)

    def launch(self, number: int) -> str:
        """Submit the job of an instance; return the name of its node."""
        name = f"{self._group}-{number}"
        worker = stack.worker("node", {**self._system.environment, "TANGRAM_NODE": name}, name)
        order = LaunchOrder(
            _INSTALLATION, self._group, name, self.spec, worker.command, worker.environment
        )
        self.launcher.launch(order)
        return name

    def listed(self) -> dict[str, Instance]:
        """Return the instances that Slurm has."""
        return {each.name: each for each in self.launcher.instances(_INSTALLATION, self._group)}

    def end(self, name: str) -> None:
        """End an instance."""
        self.launcher.end(_INSTALLATION, self._group, name)

    def job(self, name: str) -> str:
        """Return the id of the job of an instance."""
        return self.listed()[name].handle.removeprefix("job ")

    def ready(self) -> dict[str, Any]:
        """Return the nodes that the scheduler has as ready."""
        nodes = self._system.status()["nodes"]
        return {each["name"]: each for each in nodes if each["state"] == "ready"}

    def wait_until_ready(self, *names: str) -> None:
        """Wait until nodes have joined and may be granted."""
        wait_until(lambda: set(names) <= set(self.ready()), "nodes do not join")

    def keep(self, wanted: int) -> None:
        """Take one step towards ``wanted`` nodes. Waits until a node that it drains is empty."""
        joined = self.ready()
        work = {name: NodeWork(drained=name in self._drained) for name in joined}
        now = time.time()
        steps = plan(self._group, self.spec, wanted, list(self.listed().values()), work, now)
        for name in steps.launch:
            self.launch(int(name.rpartition("-")[2]))
        for name in steps.drain:
            self._system.drain(name)
            self._drained.add(name)
        for name in steps.end:
            self.end(name)

    def call(self, *command: str) -> str:
        """Run a program of Slurm, as an operator does."""
        return self._cluster.call(*command)


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Wait for a condition that other processes bring about."""
    ends = time.monotonic() + READY_WITHIN_SECONDS
    while not holds():
        assert time.monotonic() < ends, what
        time.sleep(0.05)
