"""slurm_nodes: how long node workers take to be ready once Slurm has given them machines.

Each node worker is a job on a slurmd of its own; all slurmd, the loop, the web process and the node workers share this machine.
Target: 8 nodes ready ≤ 20 s after the last job runs. Beside it the CPU time of all node workers together until then, which
bounds it on few cores, and the load of the machine while it was measured.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import urllib.error
from pathlib import Path
from typing import Any

import psutil

from benchmarks.interruption import end_on_sigterm
from benchmarks.record import store
from managers.launch.launcher import InstanceState
from tests.faults.slurm_nodes import SlurmNodes, wait_until
from tests.faults.system import System
from tests.slurm_cluster import has_control_groups, running_cluster

TARGET_SECONDS = 20.0
_POLL_SECONDS = 0.1


def _answers(system: System) -> bool:
    try:
        return bool(system.status())
    except (urllib.error.URLError, ConnectionError):
        return False


def _cpu_seconds(names: list[str]) -> float:
    total = 0.0
    for process in psutil.process_iter(["cmdline", "cpu_times"]):
        words = process.info["cmdline"] or []
        if any(f"{name}@%h" in words for name in names):
            total += process.info["cpu_times"].user + process.info["cpu_times"].system
    return total


def _measure(nodes: SlurmNodes, count: int) -> dict[str, Any]:
    """Launch all at once; return when each ran and was ready, in seconds since the first submission."""
    began = time.monotonic()
    names = [nodes.launch(number) for number in range(1, count + 1)]
    submitted = time.monotonic() - began
    runs: dict[str, float] = {}
    ready: dict[str, float] = {}
    while len(ready) < count:
        now = time.monotonic() - began
        if len(runs) < count:
            for name, each in nodes.listed().items():
                if each.state is InstanceState.RUNNING:
                    runs.setdefault(name, now)
        for name in set(names) & set(nodes.ready()):
            ready.setdefault(name, time.monotonic() - began)
        time.sleep(_POLL_SECONDS)
    spent = _cpu_seconds(names)
    ending = time.monotonic()
    for name in names:
        nodes.end(name)
    wait_until(lambda: not nodes.listed(), "jobs do not end")
    return {
        "nodes": count,
        "submitted_seconds": round(submitted, 2),
        "all_run_seconds": round(max(runs.values()), 2),
        "all_ready_seconds": round(max(ready.values()), 2),
        "ready_after_running_seconds": round(max(ready.values()) - max(runs.values()), 2),
        "slowest_node_seconds": round(max(ready[name] - runs[name] for name in names), 2),
        "cpu_seconds": round(spent, 2),
        "load": [round(each, 1) for each in os.getloadavg()],
        "ended_seconds": round(time.monotonic() - ending, 2),
    }


def main() -> None:
    """Measure each number of nodes; store and print the rows."""
    end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4, 8])
    counts = parser.parse_args().nodes
    rows = []
    with tempfile.TemporaryDirectory(prefix="tangram-bench-") as directory:
        system = System(Path(directory), nodes=0)
        try:
            system.start_only("loop-1", "projector", "web")
            wait_until(lambda: _answers(system), "the web process does not answer")
            for count in counts:
                # `exclusive`: one on each machine.
                with running_cluster(count, cgroups=has_control_groups()) as cluster:
                    nodes = SlurmNodes(
                        system, cluster, Path(directory), f"of-{count}", exclusive="true"
                    )
                    rows.append(_measure(nodes, count))
                print(rows[-1], flush=True)
        finally:
            system.stop()
    met = rows[-1]["ready_after_running_seconds"] <= TARGET_SECONDS
    print("stored in", store("slurm_nodes", {"rows": rows, "target_seconds": TARGET_SECONDS, "met": met}))  # fmt: skip


if __name__ == "__main__":
    main()
