"""gpu_services: ten real services on three declared GPUs, against a placement that refuses seven.

Each service is a process that holds weights (examples/gpu_service). A call sleeps for a fixed time, as
if a GPU worked. Arrivals are those of a trace of LLM requests, sped up so that calls alone need so much
of the GPUs (``--load``); 80 % go to three services at a time, and the three change
(`simulator/workloads/services.py`). Each rival meets the same arrivals:

    turns    our policies, weights kept in host memory: a switch drops them and copies them again
    paper    calls as they come, weights kept likewise
    cold     our policies, a cold start for each switch: the process before it is ended, a new one is
             started, which imports Python and numpy, draws its weights and answers once,
             as it does after every restore
    static   three services have a GPU each; calls of the others are refused

ACT is what the caller sees, from the moment it wants to call to the answer. Before ``turns`` and
``paper`` every service is started once on every GPU and put to sleep there, as the paper prepares them.

Goal: no call refused, mean ACT at most 1.4 × that of ``static`` at 65 % load, and a switch ten times
cheaper than a cold start.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections import defaultdict
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import mean
from time import monotonic
from typing import Any, Final, NamedTuple

from benchmarks.record import store
from benchmarks.stack import Stack, tangram, token
from examples.gpu_service.demo import declaration
from simulator.foreign.reading import requests_of
from simulator.llm_trace import make_requests
from simulator.workloads.services import Arrival, Arrivals, most_called
from tangram_client import ActionView, AsyncClient, Client
from tangram_client._calls import apply_config
from tangram_client.payloads import call_action

GPUS: Final = 3
SERVICES: Final = tuple(f"model-{number}" for number in range(10))
#: Rival → its policy. Those with weights in host memory come last: they are prepared once.
POLICIES: Final = {"cold": "minimum", "static": "minimum", "turns": "minimum", "paper": "paper"}


class Called(NamedTuple):
    """A call that was answered, and how long that took for its caller."""

    view: ActionView
    act_seconds: float


def arrivals(options: argparse.Namespace) -> list[Arrival]:
    """Return the calls of one run: a function of the options alone."""
    requests = make_requests(10_000, options.seed)
    if options.trace is not None:
        requests, _ = requests_of(options.trace)
    return Arrivals(
        requests,
        SERVICES,
        GPUS,
        options.load,
        options.seconds,
        options.call_seconds,
        options.burst_seconds,
        options.seed,
    ).all()


async def play(
    stack: Stack, own: str, calls: list[Arrival], seconds: float, *, alone: bool = False
) -> list[Called]:
    """Make all calls at their times, each of so many ``seconds``.

    ``alone``: those of one service one after the other.
    """
    lines: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
    async with AsyncClient(f"http://{stack.host}:{stack.port}", own) as client:
        began = monotonic()

        async def make(call: Arrival) -> Called:
            await asyncio.sleep(max(0.0, began + call.at_seconds - monotonic()))
            wanted = monotonic()
            body = {"text": call.service, "seconds": seconds}
            action = call_action("bench", f"service:{call.service}", "/v1/score", json=body)
            async with AsyncExitStack() as line:
                if alone:
                    await line.enter_async_context(lines[call.service])
                view = await client.run(action)
            return Called(view, monotonic() - wanted)

        return await asyncio.gather(*map(make, calls))


def measure(
    name: str, stack: Stack, own: str, calls: list[Arrival], seconds: float
) -> dict[str, Any]:
    """Let one rival meet the arrivals."""
    served = calls
    if name == "static":
        served = most_called(calls, GPUS)
        first = [Arrival(0.0, service) for service in sorted({call.service for call in served})]
        asyncio.run(play(stack, own, first, 0.0))
    done = asyncio.run(play(stack, own, served, seconds, alone=name == "static"))
    acts = sorted(each.act_seconds for each in done)
    for each in done:
        if each.view.outcome != "completed":
            print("   ", each.view.id, each.view.outcome, each.view.detail, flush=True)
    results = [each.view.result for each in done if each.view.result]
    restores = [result["restore_seconds"] for result in results if not result["cached"]]
    return {
        "calls": len(calls),
        "refused": len(calls) - len(served),
        "completed": sum(each.view.outcome == "completed" for each in done),
        "mean_act_seconds": round(mean(acts), 3),
        "p99_act_seconds": round(acts[len(acts) * 99 // 100], 3),
        "restores": len(restores),
        "mean_restore_seconds": round(mean(restores), 4) if restores else 0.0,
    }


def prepare(stack: Stack, own: str) -> None:
    """Start every service on every GPU: by ``paper``, calls that come at once go apart."""
    for service in SERVICES:
        asyncio.run(play(stack, own, [Arrival(0.0, service)] * GPUS, 0.0))


def verdict(rivals: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Return how the rivals stand to each other, as far as they ran."""
    found = {}
    if {"turns", "static"} <= rivals.keys():
        acts = [rivals[name]["mean_act_seconds"] for name in ("turns", "static")]
        found["mean ACT, turns to static"] = round(acts[0] / acts[1], 2)
    if {"turns", "cold"} <= rivals.keys() and rivals["turns"]["restores"]:
        switches = [rivals[name]["mean_restore_seconds"] for name in ("cold", "turns")]
        found["a switch, cold start to restore"] = round(switches[0] / switches[1], 1)
    return found


def run(options: argparse.Namespace, stack: Stack) -> dict[str, dict[str, Any]]:
    """Let all rivals meet the arrivals, one after the other."""
    calls, rivals = arrivals(options), {}
    own, prepared = token(stack, "read", "submit", "config"), False
    with Client(f"http://{stack.host}:{stack.port}", own) as admin:

        def configure(policy: str, *, sleeps: bool) -> None:
            head = {"apiVersion": "tangram/v1", "kind": "Pool", "metadata": {"name": "default"}}
            admin.send(apply_config(json.dumps({**head, "spec": {"policy": policy}})))
            services = declaration(SERVICES, options.mebibytes, sleeps=sleeps)
            admin.send(apply_config(services))

        for name in (name for name in POLICIES if name in options.rivals):
            sleeps = name in ("turns", "paper")
            if sleeps and not prepared:
                configure("paper", sleeps=True)
                prepare(stack, own)
                prepared = True
            configure(POLICIES[name], sleeps=sleeps)
            rivals[name] = measure(name, stack, own, calls, options.call_seconds)
            print(name, rivals[name], flush=True)
    return rivals


def main() -> None:
    """Run all rivals on one system, and store what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", type=Path, help="a CSV with t_ms; else generated")
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--load", type=float, default=0.65)
    parser.add_argument("--call-seconds", type=float, default=0.5)
    parser.add_argument("--burst-seconds", type=float, default=20.0)
    parser.add_argument("--mebibytes", type=int, default=32, help="weights of each service")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rivals", nargs="+", default=list(POLICIES), choices=list(POLICIES))
    options = parser.parse_args()
    os.environ["TANGRAM_NODE_GPUS"] = str(GPUS)
    with tangram() as stack:
        rivals = run(options, stack)
    names = ("load", "seconds", "call_seconds", "mebibytes", "seed")
    described = {name: getattr(options, name) for name in names}
    trace = options.trace.name if options.trace else "generated"
    found = verdict(rivals)
    print(found)
    print(store("gpu_services", {**described, "arrivals": trace, **found, "rivals": rivals}))


if __name__ == "__main__":
    main()
