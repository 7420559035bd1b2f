"""Grant latency with 1,000 leases that wait for 100 API resources; part of quota_calls.

Every resource has one unit and a quota that never binds; ten leases wait for each. One after the
other is given back, and the next one in its line is granted. A grant's latency is what the loop
takes from reading the release to the commit that grants (its pass), and, for comparison, what the
client waits from sending the release until the other lease is seen granted.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx

from benchmarks.record import quantiles
from benchmarks.stack import Stack

RESOURCES, WAITING = 100, 1000
#: Releases: more passes than the loop's statistics look back on.
ROUNDS = 1100


async def grant_latency(stack: Stack) -> dict[str, Any]:
    """Return quantiles of grants in a system that runs."""
    url = f"http://{stack.host}:{stack.port}/api/v1"
    headers = {"Authorization": f"Bearer {stack.token}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60.0) as client:
        for number in range(RESOURCES):
            quotas = [{"units": 100_000, "window_seconds": 1.0}]
            body = {"limit_units": 1, "quotas": quotas}
            (await client.put(f"/resources/api:r{number}", json=body)).raise_for_status()
        lines = [await _fill(client, number) for number in range(RESOURCES)]
        seen = [await _hand_on(client, lines[n % RESOURCES], n) for n in range(ROUNDS)]
        status = (await client.get("/status")).json()
    return {
        "resources": RESOURCES,
        "waiting": WAITING,
        "cycle_p99_ms": round(1000 * status["cycle_seconds"]["p99"], 3),
        "pass_p50_ms": round(1000 * status["pass_seconds"]["p50"], 3),
        "pass_p99_ms": round(1000 * status["pass_seconds"]["p99"], 3),
        "seen_by_client": quantiles(seen),
    }


def _lease(resource: int) -> dict[str, Any]:
    return {
        "task": "bench",
        "kind": "lease",
        "cost": {f"api:r{resource}": 1},
        "lease": {"ttl_seconds": 3600},
    }


async def _fill(client: httpx.AsyncClient, resource: int) -> list[str]:
    """Let one lease hold a resource and ten wait for it; return their ids in order."""
    actions = [_lease(resource) for _ in range(1 + WAITING // RESOURCES)]
    for _ in range(200):
        items = (await client.post("/actions/batch", json={"actions": actions})).json()["items"]
        if items[0]["status"] == 202:
            return [item["id"] for item in items]
        await asyncio.sleep(0.05)  # the gateway has not heard of the resource yet
    raise SystemExit(f"leases are refused: {items[0]}")


async def _hand_on(client: httpx.AsyncClient, line: list[str], number: int) -> float:
    """Give back the lease that is held; return when the next one was seen to be granted."""
    line.append((await client.post("/actions", json=_lease(number % RESOURCES))).json()["id"])
    held = line.pop(0)
    began = time.perf_counter()
    (await client.post(f"/leases/{held}/release")).raise_for_status()
    while (await client.get(f"/actions/{line[0]}")).json()["state"] == "queued":
        pass
    return time.perf_counter() - began
