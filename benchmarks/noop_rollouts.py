"""noop rollouts: one rollout worker on one core, with the handlers in a process of their own, beside a fake port.

``python -m benchmarks.noop_rollouts [--rollouts 1000] [--repeats 3]``. Measures the worker alone: three stages with their leases,
three records and one report for each rollout. Targets: at least 100 rollouts a second, 1,000 at once.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import time
from typing import Any

import uvloop

from benchmarks.record import store
from domain.rollouts import Rollout, RolloutId
from rollout.handlers.registry import handlers
from rollout.testing.fake_port import FakePort
from rollout.testing.local_handlers import running
from rollout.worker.handler_pool import HandlerPool
from rollout.worker.worker import RolloutWorker


async def measure(count: int) -> dict[str, Any]:
    """Run so many rollouts at once, in a worker whose handler process runs already."""
    port = FakePort()
    worker = RolloutWorker(port, handlers(), slots=count, pool=HandlerPool(1))
    async with running(worker):
        await finish(port, ["warm"])
        began, cpu = time.perf_counter(), cpu_seconds()
        await finish(port, [f"rol_{number}" for number in range(count)])
        seconds = time.perf_counter() - began
        used = cpu_seconds() - cpu
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {
        "rollouts": count,
        "seconds": round(seconds, 3),
        "per_second": round(count / seconds, 1),
        "worker_cpu_ms_each": round(1000 * used / count, 3),
        "worker_mib": memory,
    }


async def finish(port: FakePort, names: list[str]) -> None:
    """Submit rollouts and wait for their ends."""
    for name in names:
        rollout = Rollout(id=RolloutId(name), project="default", task="bench", handler="noop")
        port.submit_rollout(rollout, environment=None)
    results = await asyncio.gather(*(port.result(name) for name in names))
    assert all(result.reward == 1.0 for result in results), results[0]


def cpu_seconds() -> float:
    """Return the CPU time of this process; that of its children is known at their ends."""
    return time.process_time()


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rows = []
    for _ in range(options.repeats):
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            rows.append(runner.run(measure(options.rollouts)))
        print(rows[-1])
    slowest = min(row["per_second"] for row in rows)
    print(f"slowest: {slowest:.0f} rollouts/s on one core (target: at least 100)")
    print("stored in", store("noop_rollouts", {"rows": rows, "slowest_per_second": slowest}))


if __name__ == "__main__":
    main()
