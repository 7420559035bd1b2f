"""A Tangram whose node workers run on a Ray of several raylets on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from domain.node_groups import NodeGroupSpec
from managers.launch.launcher import Instance, LaunchOrder
from managers.launch.ray_cluster import RayLauncher, make
from tangram_web.supervisor import stack
from tests.doors.environments import python_of
from tests.faults.system import System
from tests.ray_machines import RayMachines

WITHIN_SECONDS = 300.0


class RayNodes:
    """Instances of a group on machines for nodes, beside a machine for trainers."""

    installation = "tangram-tests"

    def __init__(self, directory: Path, *, machines: int = 3) -> None:
        self.directory, self.group = directory, "onray"
        self.machines = RayMachines(python_of("ray"))
        # Tasks of trainers would fill the cores of a spare machine, and no instance could move there.
        self.machines.add("trainers", num_cpus=2, resources={"trainers": 100})
        for number in range(1, machines + 1):
            self.add_machine(str(number))
        given = {
            "TANGRAM_SECRET_KEY": "of a test, " * 8,
            "TANGRAM_INSTALLATION": self.installation,
        }
        self.system = System(directory, nodes=0, environment=given, tcp=True)
        self.launcher: RayLauncher | None = None

    def add_machine(self, name: str) -> None:
        """Add a machine for node workers, with a home of its own."""
        home = self.directory / f"machine-{name}"
        home.mkdir()
        self.machines.add(
            f"m{name}", num_cpus=2, resources={"tangram": 1}, env_vars={"HOME": str(home)}
        )

    def start(self) -> None:
        """Start all parts but nodes."""
        access = self.system.start_only("loop-1", "loop-2", "projector", "web")
        client = self.directory / "client.json"
        client.write_text(json.dumps({"url": self.system.address.url, "token": access["token"]}))
        options = {
            "python": str(self.machines.python),
            "address": self.machines.address,
            "client": str(client),
        }
        self.spec = NodeGroupSpec("ray", count=2, cpus=2, options=options)
        self.launcher = make(options)

    def launch(self, count: int) -> None:
        """Launch instances, and wait until their nodes are ready."""
        assert self.launcher is not None
        names = {f"{self.group}-{number}" for number in range(1, count + 1)}
        for name in sorted(names):
            self.launcher.launch(self._order(name, self.spec))
        until(lambda: self.ready_nodes() == names)

    def declare(self, count: int, **options: str) -> None:
        """Declare the group, which the keeper then brings to its size, with changes of its options."""
        spec = {
            "engine": "ray", "count": count, "cpus": 2, "options": {**self.spec.options, **options},
        }  # fmt: skip
        document = {
            "apiVersion": "tangram/v1",
            "kind": "NodeGroup",
            "metadata": {"name": self.group},
            "spec": spec,
        }
        self.system.apply(json.dumps(document))

    def report(self) -> Any:
        """Return what the keeper stored last of the group."""
        groups = self.system.ask("GET", "/api/v1/node-groups")["groups"]
        return next(each for each in groups if each["name"] == self.group)

    def program_of(self, name: str) -> str:
        """Return the program of the process of a node worker."""
        (found,) = (
            each.info["cmdline"][0]
            for each in psutil.process_iter(["cmdline"])
            if f"{name}@%h" in (each.info["cmdline"] or ())
        )
        return str(found)

    def _order(self, name: str, spec: NodeGroupSpec) -> LaunchOrder:
        # Each machine keeps the state of its nodes in a home of its own.
        given = {n: v for n, v in self.system.environment.items() if n != "TANGRAM_HOME"}
        own = {
            "TANGRAM_NODE": name,
            "TANGRAM_NODE_CPUS": str(spec.cpus),
            "TANGRAM_NODE_DOOR": "0.0.0.0:0",
        }
        program = stack.worker("node", {**given, **own}, name)
        return LaunchOrder(
            self.installation, self.group, name, spec, program.command, program.environment
        )

    def instances(self) -> dict[str, Instance]:
        assert self.launcher is not None
        return {each.name: each for each in self.launcher.instances(self.installation, self.group)}

    def nodes(self) -> dict[str, Any]:
        return {node["name"]: node for node in self.system.status()["nodes"]}

    def ready_nodes(self) -> set[str]:
        return {name for name, node in self.nodes().items() if node["state"] == "ready"}

    def train(self, script: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a program of a trainer, under Ray's Python and without any variable of ours."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        command = [str(self.machines.python), "-c", script, self.machines.address, *arguments]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=kept, cwd=self.directory
        )

    def stop(self) -> None:
        """End the instances, Tangram and Ray, each also where the one before fails."""
        try:
            self.end_instances()
        finally:
            try:
                self.system.stop()
            finally:
                self.machines.close()

    def end_instances(self) -> None:
        """End what the launcher has launched, without a keeper."""
        launcher = self.launcher
        if launcher is None:
            return
        try:
            for name in self.instances():
                launcher.end(self.installation, self.group, name)
            until(lambda: not self.instances())
        finally:
            launcher.close()


def until(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + WITHIN_SECONDS
    while not holds():
        assert time.monotonic() < ends, "it did not happen in time"
        time.sleep(0.2)
