"""quota_calls: bursts of 256 trajectories at an API with limits, granted or retried by each caller.

The API takes 50 requests/s and 20 at once, answers 429 above that and sometimes 500. Each trajectory
thinks, sends a burst of calls, waits for all of them, and again. The rival is what trainers do
today: each caller has up to three retries (paper §6, 600 s time-out), here with exponential back-off,
jitter, and respect for Retry-After. Target: no call of ours fails. A call that was never answered
with 200 is failed; the ACT of a call is what its caller waited. Who gives up waits less, so a second
rival retries until it has its answer, with pauses that grow to 8 s: as much work as ours.

The declaration spreads the quota: 50 in a second, and 25 in each quarter of it. A burst of 50 would
reach the server as jittered as the machine is; the margin is for that of a machine that is shared.

Beside it: grants with 1,000 waiting over 100 API resources, target p99 ≤ 5 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import httpx
import uvloop

from benchmarks.grant_latency import grant_latency
from benchmarks.local_api import AT_ONCE, RATE, local_api
from benchmarks.record import store
from benchmarks.stack import Stack, tangram, token

TRAJECTORIES, TURNS, BURST = 256, 2, 4
TIMEOUT_SECONDS = 600.0
RETRIES = 3
MARGIN_SECONDS = 0.2

#: Returns the last status of one call, however it was brought about.
Caller = Callable[[random.Random], Awaitable[int]]


async def _play(call: Caller, trajectories: int) -> dict[str, Any]:
    """Let all trajectories begin at once; return what their calls were worth."""
    acts: list[float] = []
    failed: list[int] = []
    broken: set[int] = set()

    async def one(number: int, chance: random.Random) -> None:
        began = time.perf_counter()
        status = await call(chance)
        acts.append(time.perf_counter() - began)
        if status != 200:
            failed.append(status)
            broken.add(number)

    async def trajectory(number: int) -> None:
        chance = random.Random(number)
        for _ in range(TURNS):
            await asyncio.sleep(chance.uniform(0.0, 2.0))
            await asyncio.gather(*(one(number, chance) for _ in range(BURST)))

    began = time.perf_counter()
    await asyncio.gather(*(trajectory(number) for number in range(trajectories)))
    ordered = sorted(acts)
    return {
        "calls": len(acts),
        "failed_calls": len(failed),
        "failed_trajectories": len(broken),
        "act_mean_seconds": round(sum(acts) / len(acts), 3),
        "act_p95_seconds": round(ordered[int(len(ordered) * 0.95)], 3),
        "makespan_seconds": round(time.perf_counter() - began, 1),
    }


def _clients() -> httpx.AsyncClient:
    # Idle connections are left before a server closes them: a race that no retry is spent on here.
    limits = httpx.Limits(
        max_connections=None, max_keepalive_connections=None, keepalive_expiry=2.0
    )
    return httpx.AsyncClient(limits=limits, timeout=TIMEOUT_SECONDS)


async def _each_retries(port: int, trajectories: int, retries: int) -> dict[str, Any]:
    async with _clients() as client:

        async def call(chance: random.Random) -> int:
            for attempt in range(1 + retries):
                answer = await client.post(f"http://127.0.0.1:{port}/search", content=b"{}")
                if answer.status_code not in (429, 500) or attempt == retries:
                    break
                asked = float(answer.headers.get("Retry-After", 0))
                await asyncio.sleep(
                    max(asked, min(8.0, 0.5 * 2**attempt)) * chance.uniform(1.0, 1.5)
                )
            return answer.status_code

        return await _play(call, trajectories)


async def _granted(stack: Stack, port: int, trajectories: int) -> dict[str, Any]:
    """Let Tangram make the same calls."""
    url = f"http://{stack.host}:{stack.port}/api/v1"
    declared = {
        "limit_units": AT_ONCE,
        "quotas": [
            {"units": RATE, "window_seconds": 1.0, "margin_seconds": MARGIN_SECONDS},
            {"units": RATE / 2, "window_seconds": 0.25},
        ],
        "api": {"base_url": f"http://127.0.0.1:{port}", "reach": "loopback"},
    }
    action = {
        "task": "bench",
        "kind": "call",
        "call": {"target": "api:bench", "path": "/search", "body": "{}"},
        "timeout_seconds": TIMEOUT_SECONDS,
        "replay_safe": True,
    }
    async with _clients() as client:
        client.headers["Authorization"] = f"Bearer {stack.token}"
        await _declare(client, url, declared, action)

        async def call(_: random.Random) -> int:
            view = await _answer(client, client.post(f"{url}/actions?wait=60", json=action))
            while view["state"] != "finished":
                asking = client.get(f"{url}/actions/{view['id']}", params={"wait": "60"})
                view = await _answer(client, asking)
            return int((view["result"] or {}).get("status", 0))

        result = await _play(call, trajectories)
        status = (await client.get(f"{url}/status")).json()
    return {**result, "cycle_p99_ms": round(1000 * status["cycle_seconds"]["p99"], 3)}


async def _declare(
    client: httpx.AsyncClient, url: str, declared: dict[str, Any], action: dict[str, Any]
) -> None:
    answer = await client.put(f"{url}/resources/api:bench", json=declared)
    answer.raise_for_status()
    for _ in range(200):  # the gateway hears of it by the journal
        if (await client.post(f"{url}/actions?wait=30", json=action)).status_code != 422:
            return
        await asyncio.sleep(0.05)
    raise SystemExit("the API that was declared does not come in force")


async def _answer(client: httpx.AsyncClient, asking: Awaitable[httpx.Response]) -> dict[str, Any]:
    answer = await asking
    if answer.status_code >= 300:
        raise SystemExit(f"answered {answer.status_code}: {answer.text[:300]}")
    view: dict[str, Any] = answer.json()
    return view


def _seen(port: int) -> dict[str, int]:
    stats: dict[str, int] = httpx.get(f"http://127.0.0.1:{port}/stats").json()
    return stats


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trajectories", type=int, default=TRAJECTORIES)
    parser.add_argument("--busy", action="store_true", help="note that the machine was busy")
    options = parser.parse_args()
    result: dict[str, Any] = {"busy_machine": options.busy, "trajectories": options.trajectories}
    for name, retries in (("each_retries", RETRIES), ("each_retries_until_done", 1000)):
        with local_api() as port:
            rival = uvloop.run(_each_retries(port, options.trajectories, retries))
            result[name] = {**rival, "server": _seen(port)}
    with tangram("--cpus", "2") as started:
        stack = replace(started, token=token(started, "read", "submit", "config"))
        with local_api() as port:
            ours = uvloop.run(_granted(stack, port, options.trajectories))
            result["tangram"] = {**ours, "server": _seen(port)}
        result["grants"] = uvloop.run(grant_latency(stack))
    print(json.dumps(result, indent=2))
    print("stored in", store("quota_calls", result))


if __name__ == "__main__":
    main()
