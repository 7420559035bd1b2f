"""docker_loads: what a whole Tangram adds to actions in containers at four offered loads, as Table 1 counts it.

Actions arrive at random moments and keep one core busy each; their executions last 0.975 s on average, as those of AI
coding at batch 1,280 do (ARL-Tangram Table 1). The offered load is the sum of their executions over the time of the cores
that the node grants. Queue, overhead and execution are those that Tangram reports of each action; containers exist before.
Each load is run with several seeds. Target: overhead over execution at most 0.02, which ARL-Tangram §6.4 measured.
Needs root, dockerd and mmdebstrap.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import Any, Final

from benchmarks.record import store
from benchmarks.stack import tangram
from tangram_client.aio import AsyncClient
from tangram_client.models import ActionTiming
from tangram_client.payloads import exec_action
from tangram_client.traces.burn import SHORT_SECONDS, burn_command
from tests.docker_engine import IMAGE, DockerEngine

#: Shares of the granted cores that actions ask for.
LOADS: Final = (0.25, 0.5, 0.75, 0.95)
MEAN_SECONDS: Final = 0.975
#: A longer action would be most of what a short run has.
LONGEST: Final = 4.0
LIMIT_SECONDS: Final = 120.0


@dataclass(frozen=True)
class Arrival:
    """One action: when it is submitted, and how long it keeps a core busy, in seconds."""

    at_seconds: float
    busy_seconds: float


def arrivals(load: float, cores: float, seconds: float, seed: int) -> list[Arrival]:
    """Return actions whose executions add up to ``load`` of ``cores`` over ``seconds``.

    Moments are uniform, which is a Poisson process of a known count; executions are exponential, between
    the shortest that keeps a core busy and `LONGEST` times the mean, and scaled to the exact sum.
    """
    random = Random(f"{seed}/{load}")
    wanted = load * cores * seconds
    count = max(1, round(wanted / MEAN_SECONDS))
    lengths = [
        min(LONGEST, max(SHORT_SECONDS / MEAN_SECONDS, random.expovariate(1.0)))
        for _ in range(count)
    ]
    moments = sorted(random.uniform(0.0, seconds) for _ in range(count))
    scale = wanted / sum(lengths)
    return [Arrival(at, scale * length) for at, length in zip(moments, lengths, strict=True)]


def summed(timings: Sequence[ActionTiming]) -> dict[str, float]:
    """Return means in seconds, and overhead over execution."""
    queue = fmean(each.queue_seconds for each in timings)
    overhead = fmean(each.overhead_seconds for each in timings)
    execution = fmean(each.execution_seconds for each in timings)
    return {
        "actions": len(timings),
        "queue_seconds": round(queue, 4),
        "overhead_seconds": round(overhead, 5),
        "execution_seconds": round(execution, 4),
        "overhead_over_execution": round(overhead / execution, 5),
    }


async def one_action(client: AsyncClient, trajectory: str, seconds: float) -> ActionTiming:
    """Run one action on one core."""
    command = burn_command(seconds, 1.0)
    done = await client.run(exec_action("bench", command, cpu=1, trajectory=trajectory))
    assert done.outcome == "completed", done
    assert done.timing is not None
    return done.timing


async def play(
    client: AsyncClient, idle: asyncio.Queue[str], planned: Sequence[Arrival]
) -> dict[str, float]:
    """Submit each action when it is due, in a trajectory that has no other action."""

    async def one(arrival: Arrival) -> ActionTiming:
        await asyncio.sleep(arrival.at_seconds)
        trajectory = await idle.get()
        try:
            return await one_action(client, trajectory, arrival.busy_seconds)
        finally:
            idle.put_nowait(trajectory)

    async with asyncio.timeout(LIMIT_SECONDS):
        return summed(await asyncio.gather(*(one(each) for each in planned)))


async def measure(
    url: str, token: str, cores: int, seconds: float, seeds: int, trajectories: int
) -> dict[str, Any]:
    """Run all loads, one after another; return what came of each seed."""
    found: dict[str, Any] = {}
    async with AsyncClient(url, token) as client:
        idle: asyncio.Queue[str] = asyncio.Queue()
        for number in range(trajectories):
            await one_action(client, f"loads-{number}", SHORT_SECONDS)
            idle.put_nowait(f"loads-{number}")
        for load in LOADS:
            runs = [
                await play(client, idle, arrivals(load, cores, seconds, seed))
                for seed in range(seeds)
            ]
            shares = [run["overhead_over_execution"] for run in runs]
            found[f"{load:g}"] = {
                "overhead_over_execution": [round(fmean(shares), 5), min(shares), max(shares)],
                "runs": runs,
            }
            print(f"{load:5.2f}", *(f"{share:.4f}" for share in shares))
        for number in range(trajectories):
            await client.finish_trajectory(f"loads-{number}")
    return found


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=9.0, help="of each run")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trajectories", type=int, default=24)
    parser.add_argument("--dry", action="store_true", help="store nothing")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    load_before, began = os.getloadavg()[0], time.monotonic()
    engine = DockerEngine().start()
    try:
        engine.load_image()
        environment = {
            "TANGRAM_CPU_BACKEND": "docker",
            "TANGRAM_DOCKER_HOST": engine.host,
            "TANGRAM_DOCKER_IMAGE": IMAGE,
            "TANGRAM_NODE_CPUS": str(cores),
        }
        with tangram(environment=environment) as stack:
            url = f"http://{stack.host}:{stack.port}"
            loads = asyncio.run(
                measure(
                    url, stack.token, cores, options.seconds, options.seeds, options.trajectories
                )
            )
    finally:
        engine.stop()
    body = {
        "load_before": load_before,
        "settings": {"cores": cores, "seconds": options.seconds, "seeds": options.seeds,
                     "mean_seconds": MEAN_SECONDS},
        "loads": loads,
    }  # fmt: skip
    print(f"{time.monotonic() - began:.0f} s in all")
    if not options.dry:
        print(store("docker_loads", body))


if __name__ == "__main__":
    main()
