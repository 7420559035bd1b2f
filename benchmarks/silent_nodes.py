"""silent nodes: a node falls silent with actions on it; when it is lost, fenced and replaced, and when and how its actions end.

    python -m benchmarks.silent_nodes [--engine ray]

A real Tangram keeps a group of two nodes, full of commands that sleep, on the engine ``processes`` or on Ray (several raylets on this
machine). Each case begins again with a whole group:

- *continued in time*: the node worker is stopped (SIGSTOP, its commands go on) for 15 s, and continued.
- *stopped*: it stays stopped until its actions have ended and a successor has joined; then it is continued.
- *lost machine*: all processes of the instance are killed (on Ray: the raylet).
- *lost while it leaves* (``processes``): the same, when the group does not launch it again, so that the engine's word fences it.

Seconds count from the fault. Instants of ends are those of the journal. Targets: no action of the node ends before the engine has fenced
it, it has come back, or the grace period is over; each ends once; none runs twice; none but a completed one has a reward; the group
is whole again without a hand; and a node that is continued ends what was given up.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import psutil

from benchmarks.interruption import end_on_sigterm
from benchmarks.record import store
from benchmarks.upgrade_nodes import until
from domain.action import Outcome
from domain.decisions import Finish, Grant
from domain.events import NodeFenced, NodeJoined, NodeLost
from domain.inventory import NODE_GRACE_SECONDS
from scheduler.runtime.redis.journal import START, Journal
from tangram_client import Client, exec_action
from tests.faults.audit import Audit
from tests.faults.ray_nodes import RayNodes
from tests.faults.system import System

GROUP: Final = "silent"
NODES: Final = 2
CPUS: Final = 2
#: Of a command that is to outlast its case, and of one that is to end by itself after the node is continued.
LONG_SECONDS, SHORT_SECONDS = 900, 25
STOPPED_SECONDS: Final = 15.0
#: The journal and this program have clocks of one machine, and look at intervals.
SLACK_SECONDS: Final = 0.5


class Engine(Protocol):
    """Where the group runs."""

    name: str
    system: System

    def start(self) -> None:
        """Start all parts but nodes."""

    def declare(self, count: int) -> None:
        """Declare the group."""

    def lose(self, node: str) -> None:
        """Take the machine of a node away."""

    def stop(self) -> None:
        """End everything."""


class OnProcesses:
    """The engine ``processes``."""

    name = "processes"

    def __init__(self, directory: Path) -> None:
        self._folder = directory / "instances"
        self.system = System(directory, nodes=0, environment={"TANGRAM_JOURNAL_SECONDS": "7200"})

    def start(self) -> None:
        self.system.start_only("loop-1", "loop-2", "projector", "web")

    def declare(self, count: int) -> None:
        declare(self.system, count, {"folder": str(self._folder), "own_cores": "false"}, self.name)

    def lose(self, node: str) -> None:
        """Kill the supervisor of the instance first: it would start the worker again."""
        (place,) = self._folder.glob(f"*/*/{GROUP}/{node}")
        os.kill(json.loads((place / "supervisor.json").read_text())["pid"], signal.SIGKILL)
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("TANGRAM_INSTANCE_FOLDER", "").startswith(f"{place}/"):
                    process.kill()

    def stop(self) -> None:
        for place in list(self._folder.glob(f"*/*/{GROUP}/*")):
            self.lose(place.name)
        self.system.stop()


class OnRay:
    """Ray."""

    name = "ray"

    def __init__(self, directory: Path) -> None:
        self._running = RayNodes(directory, machines=NODES + 1)
        self._running.group = GROUP
        self.system = self._running.system

    def start(self) -> None:
        self._running.start()

    def declare(self, count: int) -> None:
        declare(self.system, count, dict(self._running.spec.options), self.name)

    def lose(self, node: str) -> None:
        self._running.machines.kill(self._running.instances()[node].machine)

    def stop(self) -> None:
        self._running.stop()


def declare(system: System, count: int, options: dict[str, str], engine: str) -> None:
    """Apply the group."""
    spec = {
        "engine": engine,
        "count": count,
        "cpus": CPUS,
        "isolation": "process",
        "options": options,
    }
    document = {
        "apiVersion": "tangram/v1",
        "kind": "NodeGroup",
        "metadata": {"name": GROUP},
        "spec": spec,
    }
    system.apply(json.dumps(document))


def worker_of(node: str) -> int | None:
    """Return the process of a node worker."""
    for process in psutil.process_iter(["cmdline"]):
        if f"{node}@%h" in (process.info["cmdline"] or []):
            return int(process.pid)
    return None


@dataclass
class Case:
    """One fault of one node, with commands on all nodes."""

    engine: Engine
    name: str
    ran: Path
    seconds: int
    actions: dict[str, str] = field(default_factory=dict)
    #: Instant of the fault, and of its end; wall clock.
    at: float = 0.0
    continued_at: float = 0.0
    lost_at: float = 0.0
    victim: str = ""

    def begin(self) -> None:
        """Fill the nodes, and choose the one that falls silent."""
        until(lambda: len(ready_nodes(self.engine.system)) == NODES, f"{NODES} nodes are ready")
        with self._client() as client:
            for number in range(NODES * CPUS):
                label = f"{self.name}-{number}".replace(" ", "-")
                command = f"echo {label} >> {self.ran}; exec sleep {self.seconds}.{os.getpid()}"
                action = exec_action(
                    "silent", command, trajectory=label, timeout_seconds=1800, reward="exit_code"
                )
                self.actions[client.submit(action).id] = label
        until(lambda: self.engine.system.running() == len(self.actions), "all commands run")
        self.victim = min(ready_nodes(self.engine.system))
        self.at = time.time()

    def until_lost(self) -> None:
        """Wait until the API says that the node is lost."""
        until(lambda: state_of(self.engine.system, self.victim) == "lost", "the node is lost")
        self.lost_at = time.time()

    def until_ended(self) -> None:
        """Wait until the actions of the node have ended."""
        until(lambda: self._mine() <= ends_of(self.engine.system).keys(), "its actions end")

    def until_whole(self) -> None:
        """Wait until as many nodes as declared take actions."""
        until(lambda: len(ready_nodes(self.engine.system)) >= NODES, "the group is whole")

    def commands_left(self) -> int:
        """Return how many commands of the actions of this node are processes."""
        return sum(1 for each in processes_of(self.seconds) if self._is_mine(each))

    def _is_mine(self, process: psutil.Process) -> bool:
        worker = worker_of(self.victim)
        with suppress(psutil.Error):
            return worker is not None and any(each.pid == worker for each in process.parents())
        return False

    def _mine(self) -> set[str]:
        return {a for a in self.actions if granted_to(self.engine.system).get(a) == self.victim}

    def _client(self) -> Client:
        return Client(self.engine.system.address.url, self.engine.system.token)

    def clear(self) -> None:
        """Cancel what runs still, and close the trajectories."""
        with self._client() as client:
            ended = ends_of(self.engine.system)
            for action, label in self.actions.items():
                if action not in ended:
                    client.cancel(action)
                with suppress(Exception):
                    client.finish_trajectory(label)
        until(lambda: self.actions.keys() <= ends_of(self.engine.system).keys(), "all have ended")

    def result(self) -> dict[str, Any]:
        """Return what was measured, and what must not have happened."""
        history = history_of(self.engine.system)
        fence = first(
            history, self.at, lambda e: isinstance(e, NodeFenced) and e.node == self.victim
        )
        lost = first(history, self.at, lambda e: isinstance(e, NodeLost) and e.node == self.victim)
        back = first(
            history, self.at, lambda e: isinstance(e, NodeJoined) and e.node.name == self.victim
        )
        joined = first(history, self.at, lambda e: isinstance(e, NodeJoined))
        ends = {a: found for a, found in ends_of(self.engine.system).items() if a in self._mine()}
        grace = None if lost is None else lost + NODE_GRACE_SECONDS
        floor = min((each for each in (fence, back, grace) if each is not None), default=0.0)
        lines = Counter(self.ran.read_text().split())
        at = {a: each[0][0] - self.at for a, each in ends.items()}
        unknown = [
            each[0][1] for each in ends.values() if each[0][1].outcome is not Outcome.COMPLETED
        ]
        return {
            "actions": len(ends),
            "journal_lost_seconds": rounded(lost),
            "api_lost_seconds": rounded(self.lost_at - self.at if self.lost_at else None),
            "fenced_seconds": rounded(fence),
            "rejoined_seconds": rounded(back),
            "ended_seconds": [rounded(min(at.values())), rounded(max(at.values()))],
            "outcomes": dict(Counter(str(each[0][1].outcome) for each in ends.values())),
            "successor_joined_seconds": rounded(joined),
            "ended_early": sum(
                each < floor - SLACK_SECONDS
                for a, each in at.items()
                if ends[a][0][1].outcome is not Outcome.COMPLETED
            ),
            "ended_twice": sum(len(each) != 1 for each in ends.values()),
            "ran_twice": sum(lines[label] > 1 for label in self.actions.values()),
            "rewards_of_others": sum(each.reward is not None for each in unknown),
        }


def rounded(seconds: float | None) -> float | None:
    """Return seconds with two digits."""
    return None if seconds is None else round(seconds, 2)


def processes_of(seconds: int) -> list[psutil.Process]:
    """Return the commands that are processes."""
    word = f"{seconds}.{os.getpid()}"
    found = psutil.process_iter(["cmdline"])
    return [each for each in found if (each.info["cmdline"] or [])[:2] == ["sleep", word]]


def history_of(system: System) -> list[tuple[float, object]]:
    """Return all events and decisions of the journal, each with its wall clock."""
    with system.client() as client:
        journal = Journal(client, system.keys)
        found: list[tuple[float, object]] = [
            (entry.at + entry.wall_offset_seconds, each)
            for _, entry in journal.after(START)
            for each in (*entry.events, *entry.decisions)
        ]
        journal.close()
    return found


def first(history: list[tuple[float, object]], since: float, holds: Any) -> float | None:
    """Return the seconds from ``since`` to the first entry that is meant."""
    return next((at - since for at, each in history if at >= since and holds(each)), None)


def ends_of(system: System) -> dict[str, list[tuple[float, Finish]]]:
    """Return the ends of each action."""
    found: dict[str, list[tuple[float, Finish]]] = {}
    for at, each in history_of(system):
        if isinstance(each, Finish):
            found.setdefault(each.action_id, []).append((at, each))
    return found


def granted_to(system: System) -> dict[str, str]:
    """Return the first node of each action."""
    found: dict[str, str] = {}
    for _, each in history_of(system):
        if isinstance(each, Grant) and each.node is not None:
            found.setdefault(each.action_id, each.node)
    return found


def nodes_of(system: System) -> dict[str, str]:
    """Return the state of each node; none while no loop answers."""
    try:
        return {each["name"]: each["state"] for each in system.status()["nodes"]}
    except OSError:
        return {}


def state_of(system: System, node: str) -> str:
    return nodes_of(system).get(node, "")


def ready_nodes(system: System) -> set[str]:
    return {name for name, state in nodes_of(system).items() if state == "ready"}


def continued_in_time(case: Case) -> dict[str, Any]:
    """Stop the node worker for less than the grace period."""
    case.begin()
    worker = worker_of(case.victim)
    assert worker is not None
    os.kill(worker, signal.SIGSTOP)
    case.until_lost()
    time.sleep(max(0.0, case.at + STOPPED_SECONDS - time.time()))
    os.kill(worker, signal.SIGCONT)
    case.until_ended()
    case.until_whole()
    return case.result()


def stopped(case: Case) -> dict[str, Any]:
    """Stop the node worker until the grace period is over, then continue it."""
    case.begin()
    worker = worker_of(case.victim)
    assert worker is not None
    os.kill(worker, signal.SIGSTOP)
    case.until_lost()
    case.until_ended()
    left = case.commands_left()
    case.until_whole()
    result = case.result() | {"commands_left_when_ended": left}
    began = time.time()
    os.kill(worker, signal.SIGCONT)
    until(lambda: not case.commands_left(), "the node ends what was given up")
    result["commands_gone_after_continued_seconds"] = rounded(time.time() - began)
    until(lambda: case.victim in ready_nodes(case.engine.system), "the node is back")
    result["ready_after_continued_seconds"] = rounded(time.time() - began)
    case.clear()
    until(lambda: len(nodes_of(case.engine.system)) == NODES, "what is too many leaves")
    result["surplus_gone_after_continued_seconds"] = rounded(time.time() - began)
    again = case.result()
    return result | {
        name: again[name] for name in ("ended_twice", "ran_twice", "rewards_of_others")
    }


def lost_machine(case: Case) -> dict[str, Any]:
    """Kill everything of the node; its engine places it again."""
    case.begin()
    case.engine.lose(case.victim)
    # An engine that places it again at once does not let it fall silent.
    case.until_ended()
    case.until_whole()
    return case.result()


def lost_while_it_leaves(case: Case) -> dict[str, Any]:
    """Kill everything of a node that the group does not launch again."""
    case.begin()
    case.engine.declare(1)
    until(lambda: len(ready_nodes(case.engine.system)) == 1, "a node leaves")
    case.victim = next(
        name for name, state in nodes_of(case.engine.system).items() if state != "ready"
    )
    case.at = time.time()
    case.engine.lose(case.victim)
    case.until_ended()
    result = case.result()
    case.engine.declare(NODES)
    return result


CASES: Final = {
    "continued in time": (continued_in_time, SHORT_SECONDS),
    "stopped": (stopped, LONG_SECONDS),
    "lost machine": (lost_machine, LONG_SECONDS),
    "lost while it leaves": (lost_while_it_leaves, LONG_SECONDS),
}
_HARM: Final = ("ended_early", "ended_twice", "ran_twice", "rewards_of_others")


def play(engine: Engine, directory: Path, names: list[str]) -> dict[str, Any]:
    """Play the cases one after the other."""
    rows = {}
    try:
        engine.start()
        until(lambda: _answers(engine.system), "the API answers")
        audit = Audit(engine.system)
        engine.declare(NODES)
        for name in names:
            run, seconds = CASES[name]
            case = Case(engine, name, directory / "ran", seconds)
            rows[name] = run(case)
            print(name, json.dumps(rows[name]), flush=True)
            case.clear()
            print(name, "is over", flush=True)
        audit.replay()
    finally:
        engine.stop()
    return rows


def _answers(system: System) -> bool:
    try:
        return bool(system.status())
    except OSError:
        return False


def main() -> int:
    """Play, print, store; return 1 when a target is missed."""
    end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", choices=("processes", "ray"), default="processes")
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--store", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    # The pool of a new installation asks for no sandbox then: commands write into one file.
    os.environ["TANGRAM_NODE_ISOLATION"] = "process"
    usual = ["stopped", "lost machine"] if options.engine == "ray" else list(CASES)
    with tempfile.TemporaryDirectory(prefix="silent-") as made:
        directory = Path(made)
        engine: Engine = OnRay(directory) if options.engine == "ray" else OnProcesses(directory)
        rows = play(engine, directory, options.case or usual)
    harm = {
        f"{name}: {what}": row[what] for name, row in rows.items() for what in _HARM if row[what]
    }
    found = {"grace_seconds": NODE_GRACE_SECONDS, "cases": rows, "met": not harm}
    if options.store:
        print(
            "stored in",
            store(
                "silent_nodes",
                found,
                variant="" if options.engine == "processes" else options.engine,
            ),
        )
    print(f"missed: {harm}" if harm else "all targets are met")
    return int(bool(harm))


if __name__ == "__main__":
    sys.exit(main())
