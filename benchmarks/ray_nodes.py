"""ray_nodes: how long it takes until node workers on a Ray cluster are ready, replaced after the loss of a machine, and gone.

    python -m benchmarks.ray_nodes --nodes 8 [--declared]

``--declared``: the group is applied as configuration, and the keeper of node groups launches it, replaces what is lost and ends it.

Target: 8 nodes ready within 20 s after Ray has the machines. All machines are raylets on this one, so its cores are shared by as many
actors and node workers as there are nodes: on a cluster each machine starts one. The CPU seconds are those of the whole machine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.interruption import end_on_sigterm
from benchmarks.record import store
from tests.faults.ray_nodes import RayNodes, until

TARGET_SECONDS = 20.0


def _cpu_seconds() -> float:
    """Return the CPU time that the machine has spent on everything."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    busy = sum(map(int, fields)) - int(fields[3]) - int(fields[4])
    return busy / os.sysconf("SC_CLK_TCK")


def measure(nodes: int, directory: Path, *, declared: bool) -> dict[str, float]:
    """Return seconds until all nodes are ready, until one is replaced, and until none is left."""
    running = RayNodes(directory, machines=nodes + 1)
    try:
        running.start()
        running.instances()  # connected, as a keeper is
        began, busy = time.monotonic(), _cpu_seconds()
        if declared:
            running.declare(nodes)
            until(lambda: len(running.ready_nodes()) == nodes)
        else:
            running.launch(nodes)
        ready, spent = time.monotonic() - began, _cpu_seconds() - busy
        listed = _timed(running.instances)
        lost, replaced = _lose(running)
        ended = _timed(lambda: _end_all(running, declared=declared))
    finally:
        running.stop()
    return {
        "nodes": nodes,
        "ready_seconds": round(ready, 2),
        "cpu_seconds_a_node": round(spent / nodes, 2),
        "list_milliseconds": round(listed * 1e3, 1),
        "lost_seconds": round(lost, 2),
        "replaced_seconds": round(replaced, 2),
        "end_seconds": round(ended, 2),
    }


def _lose(running: RayNodes) -> tuple[float, float]:
    """Kill a raylet; return seconds until its node is lost, and until it is ready on the spare machine."""
    name = f"{running.group}-1"
    machine = running.instances()[name].machine
    began = time.monotonic()
    running.machines.kill(machine)
    until(lambda: running.nodes()[name]["state"] == "lost")
    lost = time.monotonic() - began
    until(lambda: running.nodes()[name]["state"] == "ready")
    assert running.instances()[name].machine != machine
    return lost, time.monotonic() - began


def _end_all(running: RayNodes, *, declared: bool) -> None:
    assert running.launcher is not None
    if declared:
        running.declare(0)
    else:
        for name in running.instances():
            running.launcher.end(running.installation, running.group, name)
    until(lambda: not running.instances())


def _timed(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def main() -> int:
    """Measure, print and store."""
    end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--declared", action="store_true", help="let the keeper do it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ray-nodes-") as directory:
        found = measure(options.nodes, Path(directory), declared=options.declared)
    print(json.dumps(found, indent=1))
    store("ray_nodes", found, "declared" if options.declared else "")
    return int(found["ready_seconds"] > TARGET_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
