"""second_cluster: a backup of a Tangram that works is restored beside it, with nodes of its own; both go on.

The first has a node group and actions that run or wait. Its backup is restored into an empty folder with another Redis and database, as on a
second cluster (docs/operations.md, Backup and restore), with another `TANGRAM_INSTALLATION`. Then the group of the restored configuration gets
nodes of its own, actions that may run again complete there, and the others end with the reason; the first keeps its node workers. The actions are
of no trajectory: an environment is no part of a backup, and an action in one that was lost ends as ``infra_failed``.

Targets: of the second, no accepted action is lost and none that must run once is run; of the first, no node worker ends and no action is lost.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from benchmarks.interruption import end_on_sigterm
from benchmarks.record import store
from benchmarks.upgrade_nodes import GROUP, NODES, group_of_processes, until, worker_of
from tangram_client import ActionView, Client, exec_action
from tangram_web.supervisor import stack
from tests.faults.system import System

HELD: Final = 24
CORES: Final = 4
PARTS: Final = ("loop-1", "projector", "web")
SLEEP: Final = ["sleep", "30"]


def a_system(directory: Path, installation: str) -> System:
    """Return an installation without nodes; those of the group are started by its keeper."""
    environment = {
        "TANGRAM_INSTALLATION": installation, "TANGRAM_NODE_ISOLATION": "process", "TANGRAM_SECRET_KEY": "of a drill, " * 8,
    }  # fmt: skip
    return System(directory, nodes=0, environment=environment)


def ready(system: System) -> bool:
    """Say whether the nodes of the group have joined, and live."""
    try:
        nodes = system.status()["nodes"]
    except OSError:
        return False
    return sum(each["state"] == "ready" for each in nodes) == NODES and all(workers(system))


def workers(system: System) -> list[int | None]:
    """Return the processes of its node workers."""
    return [worker_of(f"{GROUP}-{number}", system) for number in range(1, NODES + 1)]


def manage(system: System, *words: str) -> None:
    """Run a command of ``manage.py``."""
    done = subprocess.run(
        [sys.executable, "manage.py", *words], cwd=stack.ROOT, env={**os.environ, **system.environment}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"manage.py {words[0]}: {done.stderr}")


def submit(system: System) -> list[str]:
    """Submit actions that run longer than the drill takes to restore; each second one may run again."""
    with Client(system.address.url, system.token) as client:
        return [
            client.submit(
                exec_action("drill", SLEEP, cpu=1, replay_safe=number % 2 == 0)
            ).id
            for number in range(HELD)
        ]  # fmt: skip


def ends(system: System, token: str, held: list[str]) -> list[ActionView]:
    """Return the actions as they ended."""
    with Client(system.address.url, token) as client:
        return [client.wait(each, patience_seconds=600) for each in held]


def restored(first: System, second: System, saved: Path) -> dict[str, float]:
    """Restore, start, and return when the web process answered and when the nodes were ready, in seconds since then."""
    began = time.monotonic()
    second.start_only()
    manage(second, "restore", str(saved), "--replace")
    seconds = {"restored": time.monotonic() - began}
    for name in PARTS:
        second[name].start()
    second.token = first.token
    second.wait_until_served()
    seconds["served"] = time.monotonic() - began
    until(lambda: ready(second), "the nodes of the second join")
    seconds["nodes_ready"] = time.monotonic() - began
    return {name: round(value, 2) for name, value in seconds.items()}


def measure(directory: Path) -> dict[str, Any]:
    """Play the drill; return times and counts."""
    first, second = (a_system(directory / name, name) for name in ("first", "second"))
    instances = directory / "instances"
    try:
        first.start_only(*PARTS)
        first.apply(group_of_processes(NODES, instances, cpus=CORES))
        until(lambda: ready(first), "the nodes of the first join")
        before, held = workers(first), submit(first)
        manage(first, "backup", str(directory / "saved"))
        seconds = restored(first, second, directory / "saved")
        again = ends(second, first.token, held)
        original = ends(first, first.token, held)
        kept = workers(first) == before
        return {
            "actions": HELD,
            "seconds": seconds,
            "first": Counter(str(each.outcome) for each in original),
            "first_kept_its_node_workers": kept,
            "second_may_run_again": Counter(str(each.outcome) for each in again[::2]),
            "second_must_run_once": Counter(str(each.outcome) for each in again[1::2]),
            "unexplained": sum("restored from a backup" not in (each.detail or "") for each in again[1::2]),
        }  # fmt: skip
    finally:
        for system in (second, first):
            if system["web"].alive:
                system.apply(group_of_processes(0, instances, cpus=CORES))
                until(lambda system=system: not any(workers(system)), "nodes end")  # type: ignore[misc]
            system.stop()


def main() -> int:
    """Play, print, store; return 1 when a target is missed."""
    end_on_sigterm()
    argparse.ArgumentParser(description=__doc__).parse_args()
    with tempfile.TemporaryDirectory(prefix="second-cluster-") as directory:
        found = measure(Path(directory))
    print(found)
    store("second_cluster", found)
    wrong = found["second_must_run_once"].keys() - {"unknown", "cancelled"}
    all_completed = (
        found["first"]["completed"] == HELD == 2 * found["second_may_run_again"]["completed"]
    )
    return int(
        not (all_completed and found["first_kept_its_node_workers"])
        or bool(wrong)
        or found["unexplained"] > 0
    )


if __name__ == "__main__":
    sys.exit(main())
