"""upgrade: every part is replaced, one after the other, while trainers submit without a pause; what is lost, and the longest stall.

In the order of docs/operations.md: loops (the standby takes over from the leader), projector and jobs, web processes, nodes. The
nodes are those of a group of engine ``processes``: each is drained so that its trajectories finish, its worker ends once it
is empty, the engine starts the next one, and the drain ends.

Targets: no accepted action is lost, none runs twice, none ends but by itself, and the SDK, with its own policy, shows its caller no
error.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.record import quantiles, store
from benchmarks.steady_trainers import SteadyTrainers
from tests.faults.audit import Audit
from tests.faults.system import System

GROUP: Final = "roll"
NODES: Final = 2
WAIT_SECONDS: Final = 300.0


class Drill:
    """One installation, its trainers, and the parts that were replaced."""

    def __init__(self, directory: Path, trainers: int) -> None:
        environment = {"TANGRAM_NODE_ISOLATION": "process", "TANGRAM_JOURNAL_SECONDS": "7200"}
        self.system = System(directory, nodes=0, webs=2, jobs=True, environment=environment)
        self._folder, self._trainers = directory, trainers
        self.rows: dict[str, dict[str, float]] = {}

    def begin(self) -> None:
        """Start everything, the nodes too, and the trainers."""
        system = self.system
        system.start_only(*(name for name in system.parts if name != "redis"))
        self.system.apply(group_of_processes(NODES, self._folder / "instances"))
        until(lambda: len(self._ready()) == NODES, "nodes join")
        self.audit = Audit(system)
        urls = [each.url for each in system.addresses]
        self.load = SteadyTrainers(urls, system.token, self._folder / "ran", self._trainers)
        self.load.start()
        self.load.wait_for(4 * self._trainers)

    @contextmanager
    def replacing(self, name: str) -> Iterator[None]:
        """Note how long a step takes, and the longest stall of all trainers during it."""
        began = time.monotonic()
        yield
        self.load.wait_for(2 * self._trainers)
        ended = time.monotonic()
        row = {"seconds": ended - began, "stall_seconds": self.load.longest_stall(began, ended)}
        self.rows[name] = {key: round(value, 2) for key, value in row.items()}
        print(f"{name:12} {self.rows[name]}", *self.load.failures, flush=True)

    def replace_parts(self) -> None:
        """Replace loops, projector, jobs and web processes."""
        system = self.system
        standby, leader = system.standby(), system.leader()
        for name, part in (
            ("standby", standby),
            ("leader", leader),
            *((name, system[name]) for name in ("projector", "jobs", "web", "web-2")),
        ):
            with self.replacing(name):
                part.end()
                part.start()
                system.wait_until_whole()

    def replace_nodes(self) -> None:
        """Replace the worker of each node, once its trajectories have finished."""
        for number in range(1, NODES + 1):
            node = f"{GROUP}-{number}"
            with self.replacing(node):
                self.system.apply(_drain(node, drained=True))
                until(lambda node=node: not self.load.open_on[node], f"{node} is empty")  # type: ignore[misc]
                self._replace_worker(node)
                self.system.apply(_drain(node, drained=False))
                until(lambda node=node: self.load.open_on[node] > 0, f"{node} works")  # type: ignore[misc]

    def _replace_worker(self, node: str) -> None:
        before = worker_of(node, self.system)
        assert before is not None
        os.kill(before, signal.SIGTERM)
        until(lambda: worker_of(node, self.system) not in (None, before), f"{node} is back")

    def count(self) -> dict[str, Any]:
        """End the trainers, and count in the journal, on disk and in the rows."""
        load = self.load
        load.stop()
        self.audit.replay()
        finishes = self.audit.finishes
        until(lambda: load.accepted <= self._ended_rows(), "rows are written")
        ended = {each: self.audit.outcomes[each].value for each in load.accepted if finishes[each]}
        return {
            "accepted": len(load.accepted),
            "lost": len(load.accepted) - len(ended),
            "ended_twice": sum(count > 1 for count in finishes.values()),
            "ran_twice": len(load.ran_twice()),
            "completed_without_running": load.never_ran(),
            "not_completed": sum(each != "completed" for each in load.outcomes.values()),
            "errors_of_the_sdk": len(load.failures),
            "longest_stall_seconds": max(each["stall_seconds"] for each in self.rows.values()),
            "slowest_action_seconds": round(max(load.took), 2),
            "act": quantiles(load.took),
            "steps": self.rows,
        }

    def _ended_rows(self) -> set[str]:
        return {each for each, outcome in self.system.outcomes_in_rows().items() if outcome}

    def end(self) -> None:
        """End the nodes of the group, then everything."""
        if self.system["web"].alive:
            self.system.apply(group_of_processes(0, self._folder / "instances"))
            until(
                lambda: not any(worker_of(f"{GROUP}-{n}", self.system) for n in (1, NODES)),
                "nodes end",
            )
        self.system.stop()

    def _ready(self) -> list[str]:
        try:
            nodes = self.system.status()["nodes"]
        except OSError:
            return []
        return [each["name"] for each in nodes if each["state"] == "ready"]


def group_of_processes(count: int, folder: Path, cpus: int = 200) -> str:
    """Return the group as a document."""
    options = f"{{folder: {folder}, own_cores: 'false'}}"
    spec = f"{{engine: processes, count: {count}, cpus: {cpus}, isolation: process, options: {options}}}"
    return f"apiVersion: tangram/v1\nkind: NodeGroup\nmetadata: {{name: {GROUP}}}\nspec: {spec}\n"


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
        time.sleep(0.05)


def main() -> int:
    """Replace, count, print, store; return 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trainers", type=int, default=16)
    parser.add_argument("--store", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tangram-upgrade-") as directory:
        drill = Drill(Path(directory), options.trainers)
        try:
            drill.begin()
            drill.replace_parts()
            drill.replace_nodes()
            result = drill.count()
        finally:
            drill.end()
    print(result)
    if options.store:
        print("stored in", store("upgrade", result))
    targets = ("lost", "ended_twice", "ran_twice", "not_completed", "errors_of_the_sdk")
    missed = [each for each in targets if result[each]]
    print("missed:" if missed else "all targets are met", *missed)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
