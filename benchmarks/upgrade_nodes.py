"""Node workers of the drill of an upgrade: how they start, and how each gets the code of another version.

none        parts of the installation, which an operator ends and starts
processes   a node group of this machine: the code below its interpreter is replaced, and its engine starts ended workers again
ray, slurm  a node group of a cluster on this machine: the option ``node_python`` names the other version, and the keeper replaces
            instances of the former shape one after the other
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Final, Protocol

import psutil

from benchmarks.steady_trainers import SteadyTrainers
from tests.doors.environments import python_of
from tests.faults.code_trees import CodeTree, interpreter
from tests.faults.system import System
from tests.ray_machines import RayMachines
from tests.slurm_cluster import has_control_groups, running_cluster

GROUP: Final = "roll"
NODES: Final = 2
WAIT_SECONDS: Final = 300.0
ENGINES: Final = ("none", "processes", "ray", "slurm")
#: More than the machine has, since the commands of the trainers wait.
MANY_CPUS: Final = 200
_RAY_CPUS: Final = 16


#: Measures a step of that name.
Step = Callable[[str], AbstractContextManager[None]]


class NodeWorkers(Protocol):
    """The node workers of one drill, under the names ``names``."""

    names: list[str]

    def start(self, system: System, count: int) -> None:
        """Start the first ``count`` of them, unless they run, with the code of the parts that start them."""

    def replace(self, system: System, load: SteadyTrainers, code: CodeTree, step: Step) -> None:
        """Replace the code of all, under load, in steps."""

    def end(self, system: System) -> None:
        """End them; those that a system ends itself may stay."""


class StartedByHand:
    """Parts n1, n2, … of the installation."""

    def __init__(self) -> None:
        self.names = [f"n{number}" for number in range(1, NODES + 1)]

    def start(self, system: System, count: int) -> None:
        """Start the parts."""
        for part in self._parts(system)[:count]:
            if not part.alive:
                part.start()

    def replace(self, system: System, load: SteadyTrainers, code: CodeTree, step: Step) -> None:
        """Drain each, end it once it is empty, start it."""
        for node, part in zip(self.names, self._parts(system), strict=True):
            with step(node), emptied(node, system, load):
                part.end()
                part.code = code
                part.start()

    def end(self, system: System) -> None:
        """The system ends its parts."""

    def _parts(self, system: System) -> list[Any]:
        return [part for name, part in system.parts.items() if name.startswith("node")]


class OfThisMachine:
    """A group of engine ``processes``."""

    def __init__(self, folder: Path, code: CodeTree) -> None:
        """``code``: of the keeper that starts them."""
        self.names = [f"{GROUP}-{number}" for number in range(1, NODES + 1)]
        self._folder, self._code = folder, code

    def start(self, system: System, count: int) -> None:
        """Declare the group; its engine starts workers with the interpreter of the keeper."""
        system.apply(group_of_processes(count, self._folder / "instances"))

    def replace(self, system: System, load: SteadyTrainers, code: CodeTree, step: Step) -> None:
        """Replace the code, drain each node, end its worker once it is empty: the engine starts it again."""
        interpreter(Path(self._code.python).parents[1], code.folder)
        for node in self.names:
            with step(node), emptied(node, system, load):
                before = worker_of(node, system)
                assert before is not None
                os.kill(before, signal.SIGTERM)
                until(lambda: worker_of(node, system) not in (None, before), f"{node} is back")  # noqa: B023

    def end(self, system: System) -> None:
        """Let the engine end the instances."""
        system.apply(group_of_processes(0, self._folder / "instances"))
        until(lambda: not any(worker_of(name, system) for name in self.names), "nodes end")


class OfAnEngine:
    """A group of a cluster on this machine, whose nodes the keeper replaces."""

    def __init__(self, engine: str, cpus: int, options: dict[str, str]) -> None:
        self.names = [f"{GROUP}-{number}" for number in range(1, NODES + 1)]
        self._engine, self._cpus, self._options = engine, cpus, options
        self._said = ""

    def start(self, system: System, count: int) -> None:
        """Declare the group; the keeper's interpreter is that of its node workers."""
        self._declare(system, count)

    def replace(self, system: System, load: SteadyTrainers, code: CodeTree, step: Step) -> None:
        """Name another interpreter, and wait until the keeper has replaced all instances."""
        self._options["node_python"] = code.python
        with step("group"):
            self._declare(system, NODES)
            until(lambda: self._is_replaced(system, code), "the keeper replaces all instances")
            names = [each["name"] for each in instances(system) or ()]
            until(lambda: all(load.open_on[name] for name in names), "all new nodes work")

    def end(self, system: System) -> None:
        """Let the keeper end the instances."""
        self._declare(system, 0)
        until(lambda: instances(system) == [], "instances end")

    def _declare(self, system: System, count: int) -> None:
        system.apply(group(self._engine, count, self._cpus, self._options))

    def _is_replaced(self, system: System, code: CodeTree) -> bool:
        report = report_of(system)
        if report is None:
            return False
        said = report["error"] or report["rollout"]
        if said != self._said:
            self._said = said
            print("   ", said, flush=True)
        # The report of a pass compares the instances with the spec that is in it.
        new = [each for each in report["instances"] if each["joined"] and not each["outdated"]]
        is_seen = report["spec"]["options"].get("node_python") == code.python
        return is_seen and len(report["instances"]) == len(new) == NODES


@contextlib.contextmanager
def cluster_of(engine: str, folder: Path, code: CodeTree) -> Iterator[NodeWorkers]:
    """Start the cluster of an engine, with room for one node more than wanted, and end it."""
    with ExitStack() as ending:
        if engine == "none":
            yield StartedByHand()
        elif engine == "processes":
            yield OfThisMachine(folder, code)
        elif engine == "ray":
            machines = RayMachines(python_of("ray"))
            ending.callback(machines.close)
            for number in range(1, NODES + 2):
                home = folder / f"machine-{number}"
                home.mkdir()
                machines.add(f"m{number}", num_cpus=_RAY_CPUS, resources={"tangram": 1}, env_vars={"HOME": str(home)})  # fmt: skip
            options = {"python": str(machines.python), "address": machines.address}
            yield OfAnEngine(engine, _RAY_CPUS, options)
        else:
            slurm = ending.enter_context(running_cluster(NODES + 1, cgroups=has_control_groups()))
            options = {"conf": str(slurm.conf), "home": str(folder / "on-slurm"), "exclusive": "true"}  # fmt: skip
            yield OfAnEngine(engine, os.cpu_count() or 1, options)


@contextlib.contextmanager
def emptied(node: str, system: System, load: SteadyTrainers) -> Iterator[None]:
    """Drain a node until its trajectories have finished, and end the drain afterwards."""
    system.apply(_drain(node, drained=True))
    until(lambda: not load.open_on[node], f"{node} is empty")
    yield
    system.apply(_drain(node, drained=False))
    until(lambda: load.open_on[node] > 0, f"{node} works")


def group_of_processes(count: int, folder: Path, cpus: int = MANY_CPUS) -> str:
    """Return a group of this machine as a document."""
    return group("processes", count, cpus, {"folder": str(folder), "own_cores": "false"})


def group(engine: str, count: int, cpus: int, options: dict[str, str]) -> str:
    """Return a group as a document; its nodes isolate nothing, so that commands leave lines in a file of the drill."""
    spec = {"engine": engine, "count": count, "cpus": cpus, "isolation": "process", "options": options}  # fmt: skip
    document = {"apiVersion": "tangram/v1", "kind": "NodeGroup", "metadata": {"name": GROUP}, "spec": spec}  # fmt: skip
    return json.dumps(document)


def instances(system: System) -> list[dict[str, Any]] | None:
    """Return what the keeper found of the group; None while that is not known."""
    report = report_of(system)
    return None if report is None else list(report["instances"])


def report_of(system: System) -> dict[str, Any] | None:
    """Return what the keeper stored last of the group; None while that is not known."""
    try:
        groups = system.ask("GET", "/api/v1/node-groups")["groups"]
    except OSError:
        return None
    return next((dict(each) for each in groups if each["name"] == GROUP), None)


def _drain(node: str, *, drained: bool) -> str:
    spec = "{drained: true, finishing: true}" if drained else "{drained: false}"
    return f"apiVersion: tangram/v1\nkind: Node\nmetadata: {{name: {node}}}\nspec: {spec}\n"


def worker_of(node: str, system: System) -> int | None:
    """Return the process of a node worker of this installation."""
    for process in psutil.process_iter(["cmdline"]):
        if f"{node}@%h" in (process.info["cmdline"] or []):
            try:
                if process.environ().get("TANGRAM_HOME") == str(system.home.path):
                    return int(process.pid)
            except psutil.Error:
                continue
    return None


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait for what other processes bring about."""
    ends = time.monotonic() + WAIT_SECONDS
    while not holds():
        if time.monotonic() > ends:
            raise SystemExit(f"after {WAIT_SECONDS:g} s it does not hold that {what}")
        time.sleep(0.1)
