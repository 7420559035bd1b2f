"""gpu_services: ten real services on three declared GPUs, against a placement that refuses seven.

Each service is a process that holds weights (examples/gpu_service); a restore is a cold start: program,
libraries, weights, first answer. A call sleeps for a fixed time, as if a GPU worked. Arrivals are
those of a trace of LLM requests, sped up so that calls alone need so much of the GPUs (``--load``);
80 % go to three services at a time, and the three change. Each rival meets the same arrivals:

    turns    our policies: a service that is there goes on for a while (`scheduler/core/affinity.py`)
    paper    calls as they come
    static   three services have a GPU each; calls of the others are refused

Wanted: nobody refused, and mean ACT at most 1.4 × that of ``static`` at 65 % load.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import os
import random
from collections import Counter
from itertools import pairwise
from pathlib import Path
from statistics import mean
from time import monotonic
from typing import Any, Final, NamedTuple

from benchmarks.record import store
from benchmarks.stack import Stack, tangram, token
from examples.gpu_service.demo import declaration
from tangram_client import ActionView, AsyncClient, Client
from tangram_client._config import apply_config
from tangram_client.payloads import call_action

GPUS: Final = 3
SERVICES: Final = tuple(f"model-{number}" for number in range(10))
HOT_SHARE: Final = 0.8
POLICIES: Final = {"turns": "minimum", "paper": "paper", "static": "minimum"}


class Arrival(NamedTuple):
    """A call that somebody makes."""

    at_seconds: float
    service: str


def arrivals(options: argparse.Namespace) -> list[Arrival]:
    """Return the calls of one run: a function of the options alone."""
    rng = random.Random(options.seed)
    gaps = _gaps(options.trace, rng)
    rate = options.load * GPUS / options.call_seconds
    scale = 1.0 / (rate * mean(gaps))
    found: list[Arrival] = []
    at, hot, until = 0.0, SERVICES[:GPUS], 0.0
    for gap in gaps * 100:
        at += gap * scale
        if at > options.seconds:
            break
        if at >= until:
            hot, until = tuple(rng.sample(SERVICES, GPUS)), until + options.burst_seconds
        some = hot if rng.random() < HOT_SHARE else SERVICES
        found.append(Arrival(at, rng.choice(some)))
    return found


def _gaps(trace: Path | None, rng: random.Random) -> list[float]:
    """Return seconds between requests: of a trace, else of a generator of our own."""
    if trace is None:
        return [rng.expovariate(1.0) for _ in range(10_000)]
    with trace.open() as file:
        times = sorted(float(row["t_ms"]) / 1000 for row in csv.DictReader(file))
    return [later - earlier for earlier, later in pairwise(times)]


async def play(stack: Stack, own: str, calls: list[Arrival]) -> list[ActionView]:
    """Make all calls at their times; return how they ended."""
    async with AsyncClient(f"http://{stack.host}:{stack.port}", own) as client:
        began = monotonic()

        async def make(call: Arrival) -> ActionView:
            await asyncio.sleep(max(0.0, began + call.at_seconds - monotonic()))
            action = call_action(
                "bench", f"service:{call.service}", "/v1/score", json={"text": call.service}
            )
            return await client.run(action)

        return await asyncio.gather(*map(make, calls))


def measure(name: str, stack: Stack, own: str, calls: list[Arrival]) -> dict[str, Any]:
    """Let one rival meet the arrivals."""
    served = calls
    if name == "static":
        often = {service for service, _ in Counter(c.service for c in calls).most_common(GPUS)}
        served = [call for call in calls if call.service in often]
        asyncio.run(play(stack, own, [Arrival(0.0, service) for service in sorted(often)]))
    views = asyncio.run(play(stack, own, served))
    acts = sorted(view.timing.act_seconds for view in views if view.timing is not None)
    restores = [v.result["restore_seconds"] for v in views if v.result and not v.result["cached"]]
    return {
        "calls": len(calls),
        "refused": len(calls) - len(served),
        "completed": sum(view.outcome == "completed" for view in views),
        "mean_act_seconds": round(mean(acts), 3),
        "p99_act_seconds": round(acts[len(acts) * 99 // 100], 3),
        "restores": len(restores),
        "mean_restore_seconds": round(mean(restores), 3) if restores else 0.0,
    }


def main() -> None:
    """Run all rivals on one system, one after the other, and store what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", type=Path, help="a CSV with t_ms; else generated")
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--load", type=float, default=0.65)
    parser.add_argument("--call-seconds", type=float, default=0.5)
    parser.add_argument("--burst-seconds", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rivals", nargs="+", default=list(POLICIES), choices=list(POLICIES))
    options = parser.parse_args()
    os.environ["TANGRAM_NODE_GPUS"] = str(GPUS)
    calls, rivals = arrivals(options), {}
    with tangram() as stack:
        own = token(stack, "read", "submit", "config")
        with Client(f"http://{stack.host}:{stack.port}", own) as admin:
            admin.send(apply_config(declaration(SERVICES, 8, options.call_seconds)))
            for name in options.rivals:
                head = {"apiVersion": "tangram/v1", "kind": "Pool", "metadata": {"name": "default"}}
                admin.send(apply_config(json.dumps({**head, "spec": {"policy": POLICIES[name]}})))
                rivals[name] = measure(name, stack, own, calls)
                print(name, rivals[name])
    described = {n: getattr(options, n) for n in ("load", "seconds", "call_seconds", "seed")}
    trace = options.trace.name if options.trace else "generated"
    print(store("gpu_services", {**described, "arrivals": trace, "rivals": rivals}))


if __name__ == "__main__":
    main()
