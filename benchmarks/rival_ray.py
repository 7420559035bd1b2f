"""The Ray side of the rival, run by the Python that has Ray: clients, seconds → JSON."""

from __future__ import annotations

import json
import sys
import time

import ray


@ray.remote  # type: ignore[untyped-decorator]
def noop() -> None:
    """Do nothing."""


def main() -> None:
    """Keep so many tasks in flight for so long."""
    clients, seconds = int(sys.argv[1]), float(sys.argv[2])
    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False, logging_level="ERROR")
    ray.get([noop.remote() for _ in range(64)])
    latencies: list[float] = []
    began = time.perf_counter()
    flying = {noop.remote(): time.perf_counter() for _ in range(clients)}
    while time.perf_counter() < began + seconds:
        done, _ = ray.wait(list(flying), num_returns=1)
        now = time.perf_counter()
        latencies.append(now - flying.pop(done[0]))
        flying[noop.remote()] = time.perf_counter()
    elapsed = time.perf_counter() - began
    ray.shutdown()
    print(json.dumps({"seconds": elapsed, "latencies": latencies}))


main()
