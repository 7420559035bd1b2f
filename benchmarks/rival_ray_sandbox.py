"""Ray alone as a runner of actions, run by the Python that has Ray: a task per action, in a sandbox of bubblewrap that it makes for it.

Lines of JSON: address, folder, machines, and what to do: ``rate`` (so many trajectories run an empty command one after the other, for so
many seconds) or ``trace`` (recorded trajectories: each step thinks, then runs) → JSON.

A trajectory keeps its folder, so all its tasks go to one machine, as actions of one environment do. A task asks for one core.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

SANDBOX = (
    "bwrap --unshare-all --die-with-parent --new-session --ro-bind /usr /usr --ro-bind-try /bin /bin --ro-bind-try /lib /lib"
    " --ro-bind-try /lib64 /lib64 --ro-bind /etc /etc --dev /dev --proc /proc --tmpfs /tmp --bind {} /workspace --chdir /workspace"
)


@ray.remote(num_cpus=1, max_retries=0)  # type: ignore[untyped-decorator]
def act(folder: str, command: Sequence[str]) -> int:
    """Run a command in a sandbox that has the folder of its trajectory; return its exit code."""
    words = [*SANDBOX.format(folder).split(), *command]
    return subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, check=False
    ).returncode


class Trajectory:
    """One trajectory, on one machine."""

    def __init__(self, folder: Path, machine: str) -> None:
        folder.mkdir(parents=True)
        strategy = NodeAffinitySchedulingStrategy(machine, soft=False)
        self._folder, self._act = str(folder), act.options(scheduling_strategy=strategy)

    def run(self, command: Sequence[str]) -> float:
        """Run one action; return its seconds."""
        began = time.perf_counter()
        if ray.get(self._act.remote(self._folder, command)):
            raise SystemExit(f"{command} failed")
        return time.perf_counter() - began


def in_threads(calls: Sequence[Callable[[], object]]) -> None:
    """Make all calls at once, and wait for them."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def rate(trajectories: Sequence[Trajectory], seconds: float) -> dict[str, Any]:
    """Run empty commands for so long."""
    in_threads([partial(each.run, ["true"]) for each in trajectories])
    found: list[float] = []
    began = time.perf_counter()

    def fill(trajectory: Trajectory) -> None:
        while time.perf_counter() < began + seconds:
            found.append(trajectory.run(["true"]))

    in_threads([partial(fill, each) for each in trajectories])
    return {"seconds": time.perf_counter() - began, "act": found}


def trace(trajectories: Sequence[Trajectory], steps: Sequence[Any]) -> dict[str, Any]:
    """Play recorded steps, a list of (think, run) for each trajectory."""
    in_threads([partial(each.run, ["true"]) for each in trajectories])
    found: list[float] = []
    began = time.perf_counter()

    def play(trajectory: Trajectory, own: Sequence[tuple[float, float]]) -> None:
        for think, run in own:
            time.sleep(think)
            found.append(trajectory.run(["sleep", f"{run:.3f}"]))

    in_threads([partial(play, *pair) for pair in zip(trajectories, steps, strict=True)])
    return {"seconds": time.perf_counter() - began, "act": found}


def main() -> None:
    """Obey the lines of the standard input."""
    ray.init(
        json.loads(sys.stdin.readline())["address"], log_to_driver=False, logging_level="ERROR"
    )
    for number, line in enumerate(sys.stdin):
        order = json.loads(line)
        machines = [
            node["NodeID"]
            for node in ray.nodes()
            if node["Alive"] and node["Resources"].get("tangram")
        ]
        trajectories = [
            Trajectory(Path(order["folder"]) / f"{number}-{each}", machines[each % len(machines)])
            for each in range(order["trajectories"])
        ]
        if "steps" in order:
            found = trace(trajectories, order["steps"])
        else:
            found = rate(trajectories, order["seconds"])
        print(json.dumps(found), flush=True)
    ray.shutdown()


main()
