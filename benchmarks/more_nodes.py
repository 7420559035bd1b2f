"""more_nodes: actions that wait, on 1, 2, 4 and 8 node workers: is the rate that of one times their number?

    python -m benchmarks.more_nodes [--nodes 1 2 4 8] [--cores 4] [--seconds 40]

Each node declares the same cores, and each action takes one core and sleeps, as one that waits for a network or a disk does: so one machine
can host all nodes, and what is measured is Tangram (grants, starts in a sandbox, ends, results), not the cores. A client keeps twice as
many actions in flight as there are cores. The counted time begins when all cores were taken once.

Target: at least 0.9 times the number of nodes. ``efficiency``: the rate, by that of one node times their number. ``of_cores``: the rate, by
what the cores would give if a grant, a start and an end took no time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from typing import Any, Final

from benchmarks.interruption import end_on_sigterm
from benchmarks.record import quantiles, store
from benchmarks.stack import Stack, tangram
from tangram_client.aio import AsyncClient

TARGET: Final = 0.9


class Filled:
    """Clients that keep so many sleeps in flight until they are stopped."""

    def __init__(self, client: AsyncClient, sleep_seconds: float, warm_after: int) -> None:
        self._client, self._sleep = client, sleep_seconds
        self._warm_after, self.warm = warm_after, asyncio.Event()
        #: Monotonic times at which actions ended, and how long each took.
        self.ends: list[tuple[float, float]] = []
        self.stopped = False

    async def one_after_another(self, name: str) -> None:
        """Run actions of one trajectory, each after the one before."""
        action = {
            "task": "nodes", "kind": "exec", "trajectory": name, "cost": {"cpu": [1]},
            "exec": {"command": ["sleep", f"{self._sleep:g}"]},
        }  # fmt: skip
        while not self.stopped:
            began = time.monotonic()
            done = await self._client.run(action)
            if done.outcome != "completed":
                raise SystemExit(f"an action ended as {done.outcome}: {done}")
            now = time.monotonic()
            self.ends.append((now, now - began))
            if len(self.ends) >= self._warm_after:
                self.warm.set()


async def _measure(stack: Stack, in_flight: int, sleep: float, seconds: float) -> dict[str, Any]:
    async with AsyncClient(f"http://{stack.host}:{stack.port}", token=stack.token) as client:
        # Two rounds of all: environments are made, and ends no longer come at once.
        filled = Filled(client, sleep, 2 * in_flight)
        async with asyncio.TaskGroup() as group:
            for number in range(in_flight):
                group.create_task(filled.one_after_another(f"trj-{number}"))
            await filled.warm.wait()
            began = time.monotonic()
            await asyncio.sleep(seconds)
            until = time.monotonic()
            filled.stopped = True
    counted = [took for end, took in filled.ends if began <= end < until]
    return {"per_second": round(len(counted) / (until - began), 2), "act": quantiles(counted)}


def measure(nodes: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return what so many nodes do."""
    cores = nodes * options.cores
    with tangram("--nodes", str(nodes), "--cpus", str(options.cores)) as stack:
        found = asyncio.run(_measure(stack, 2 * cores, options.sleep, options.seconds))
    ideal = cores / options.sleep
    return {"nodes": nodes, **found, "of_cores": round(found["per_second"] / ideal, 3)}


def main() -> int:
    """Measure, print and store."""
    end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--cores", type=int, default=4, help="that each node declares")
    parser.add_argument("--sleep", type=float, default=2.0, help="seconds of an action")
    parser.add_argument("--seconds", type=float, default=40.0)
    options = parser.parse_args()
    rows = [measure(nodes, options) for nodes in options.nodes]
    one = rows[0]["per_second"] / rows[0]["nodes"]
    for row in rows:
        row["efficiency"] = round(row["per_second"] / (one * row["nodes"]), 3)
        print(json.dumps(row))
    met = all(row["efficiency"] >= TARGET for row in rows)
    store("more_nodes", {"rows": rows, "target": TARGET, "met": met})
    return int(not met)


if __name__ == "__main__":
    sys.exit(main())
