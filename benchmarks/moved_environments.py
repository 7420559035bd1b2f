"""moved_environments: how long a node takes to become empty after a drain, with moves of idle environments and without.

Trajectories on one of two nodes have a file each that is read back, and act now and then until they have lived for a while. Then the node is
drained so that they finish. Without moves it is empty when the last one has ended. Counted: seconds until the node is empty and all
trajectories go on, seconds of one move, and the ACT of actions meanwhile, the ones that wait for a move included. Nothing may fail.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.record import store
from domain.decisions import EndMove, MoveEnvironment
from scheduler.runtime.redis.journal import START, Journal
from tangram_client import Client
from tangram_client._calls import control_node
from tests.faults.system import System

WITHIN_SECONDS: Final = 600.0
POOL: Final = """apiVersion: tangram/v1
kind: Pool
metadata: {{name: default}}
spec: {{policy: malleable, move_environments: {moves}}}
"""


class Trajectory(threading.Thread):
    """A trainer of one trajectory: it acts, pauses, and ends after its life."""

    def __init__(self, system: System, name: str, options: argparse.Namespace) -> None:
        super().__init__(daemon=True)
        self._system, self._name, self._options = system, name, options
        self.began = threading.Event()
        #: Ends of actions, and their ACTs.
        self.acts: list[tuple[float, float]] = []
        self.failures: list[str] = []

    def run(self) -> None:
        """Fill the environment, then act until the life is over."""
        with Client(self._system.address.url, self._system.token) as client:
            size = f"{self._options.megabytes}M"
            self._act(client, f"head -c {size} /dev/urandom > data && sha256sum data > sum")
            self.began.set()
            until = time.monotonic() + self._options.life
            while time.monotonic() < until:
                self._act(client, "sha256sum --status -c sum")
                time.sleep(self._options.pause)
            client.finish_trajectory(self._name)

    def _act(self, client: Client, command: str) -> None:
        began = time.monotonic()
        view = client.run(
            {
                "task": "t", "kind": "exec", "trajectory": self._name, "cost": {"cpu": 0.1},
                "exec": {"command": ["sh", "-c", command]},
            }
        )  # fmt: skip
        ended = time.monotonic()
        self.acts.append((ended, ended - began))
        if view.outcome != "completed" or view.result["exit_code"]:
            self.failures.append(f"{view.outcome}: {view.detail}")


def _until(holds: Any, what: str) -> None:
    deadline = time.monotonic() + WITHIN_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.02)


def _drain(system: System, node: str, verb: str = "drain") -> None:
    with Client(system.address.url, system.operator) as client:
        client.send(control_node(node, verb, finishing=verb == "drain"))


def _moves(system: System) -> list[float]:
    """Return the seconds of each move, from its order to the node where the trajectory lives on."""
    begun: dict[tuple[str, int], float] = {}
    seconds = []
    with system.client() as client:
        for _, entry in Journal(client, system.keys).after(START):
            for decision in entry.decisions:
                if isinstance(decision, MoveEnvironment):
                    begun[decision.trajectory, decision.number] = entry.at
                elif isinstance(decision, EndMove) and decision.has_moved:
                    seconds.append(entry.at - begun[decision.trajectory, decision.number])
    return seconds


def _measure(folder: Path, options: argparse.Namespace, *, moves: bool) -> dict[str, Any]:
    system = System(folder, nodes=2)
    try:
        system.start()
        system.apply(POOL.format(moves=str(moves).lower()))
        _drain(system, "n2")
        _until(lambda: system._node("n2")["drain"] is not None, "n2 is drained")
        trainers = [Trajectory(system, f"trj-{n}", options) for n in range(options.trajectories)]
        for each in trainers:
            each.start()
        for each in trainers:
            each.began.wait(WITHIN_SECONDS)
        _drain(system, "n2", "resume")
        _drain(system, "n1")
        began = time.monotonic()
        _until(lambda: (system._node("n1")["drain"] or {}).get("trajectories") == 0, "n1 is empty")
        empty = time.monotonic() - began
        said = system._node("n1")["drain"]["text"]
        for each in trainers:
            each.join(WITHIN_SECONDS)
        acts = [act for each in trainers for ended, act in each.acts if ended >= began]
        failures = [failure for each in trainers for failure in each.failures]
        if failures:
            raise RuntimeError(f"actions failed: {failures[:3]}")
        seconds = _moves(system)
        found: dict[str, Any] = {
            "empty_seconds": round(empty, 2),
            "said": said,
            "actions": len(acts),
            "act_median_seconds": round(statistics.median(acts), 3),
            "act_longest_seconds": round(max(acts), 3),
        }
        if seconds:
            found["move_median_seconds"] = round(statistics.median(seconds), 3)
            found["move_longest_seconds"] = round(max(seconds), 3)
        return found
    finally:
        system.stop()


def main() -> None:
    """Measure both, and store what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trajectories", type=int, default=8)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--life", type=float, default=120.0, help="seconds of each trajectory")
    parser.add_argument("--pause", type=float, default=2.0, help="seconds between its actions")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = {
            name: _measure(Path(folder) / name, options, moves=name == "with_moves")
            for name in ("with_moves", "without_moves")
        }
    for name, row in rows.items():
        print(f"{name:14} {row}", flush=True)
    given = {
        "trajectories": options.trajectories,
        "megabytes": options.megabytes,
        "life_seconds": options.life,
        "pause_seconds": options.pause,
    }
    print(f"stored in {store('moved_environments', given | rows)}")


if __name__ == "__main__":
    main()
