"""waiting: 100,000 actions wait; what a cycle, the memory and the control endpoints then cost.

Targets: cycle p99 ≤ 10 ms; ≤ 1.5 KB for each waiting action in the loop; all processes together
≤ 1 GB (PSS); control endpoints p99 ≤ 250 ms meanwhile.

All cores are held by a lease. The actions are of 64 tasks in 8 classes of cost, submitted by
1,000; while they wait, small leases come and go beside them, so that cycles have work to do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.load import exchange, post
from benchmarks.record import quantiles, store
from benchmarks.stack import Stack, tangram

BATCH = 1000
CORES = 64
#: One request of each kind after the other, so many times.
ROUNDS = 100


def _actions(first: int) -> bytes:
    items = [
        {
            "task": f"task-{number % 64}",
            "kind": "exec",
            "cost": {"cpu": 1 + number % 8},
            "exec": {"command": ["true"]},
        }
        for number in range(first, first + BATCH)
    ]
    return json.dumps({"actions": items}).encode()


class Caller:
    """One connection."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack

    async def open(self) -> Caller:
        self._reader, self._writer = await asyncio.open_connection(
            self._stack.host, self._stack.port
        )
        return self

    async def post(self, path: str, body: bytes = b"{}") -> Any:
        return await self._ask(post(path, self._stack.token, body))

    async def get(self, path: str) -> Any:
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer "
        return await self._ask(f"{head}{self._stack.token}\r\n\r\n".encode())

    async def _ask(self, request: bytes) -> Any:
        while True:
            status, body = await exchange(self._reader, self._writer, request)
            if status != 429:
                break
            await asyncio.sleep(0.2)
        if status >= 400:
            raise SystemExit(f"answered {status}: {body[:300]!r}")
        return json.loads(body or b"null")


async def _fill(caller: Caller, count: int) -> str:
    lease = {"task": "holder", "kind": "lease", "cost": {"cpu": CORES}}
    await caller.post("/api/v1/actions?wait=10", json.dumps(
        {**lease, "lease": {"ttl_seconds": 3600}}).encode())  # fmt: skip
    some = ""
    for first in range(0, count, BATCH):
        done = await caller.post("/api/v1/actions/batch", _actions(first))
        some = done["items"][0]["id"]
    while (await _queued(caller)) < count:  # noqa: ASYNC110 - the server sets no event of ours
        await asyncio.sleep(0.2)
    return some


async def _queued(caller: Caller) -> int:
    return int((await caller.get("/api/v1/status"))["pools"]["default"]["queued"])


async def _refill_window(caller: Caller) -> None:
    """Let the loop's last 1,024 passes be those beside a full queue, not those that filled it."""
    for _ in range(600):
        await caller.post("/api/v1/actions?wait=10", b'{"task":"beside","kind":"noop"}')


async def _control(caller: Caller, waiting: str) -> dict[str, list[float]]:
    """Return how long each control endpoint took, while leases come and go."""
    spent: dict[str, list[float]] = {}
    lease = {"task": "control", "kind": "lease", "cost": {"api:demo": 1}}

    async def timed(name: str, work: Any) -> Any:
        began = time.perf_counter()
        answer = await work
        spent.setdefault(name, []).append(time.perf_counter() - began)
        return answer

    for _ in range(ROUNDS):
        held = await timed("lease", caller.post("/api/v1/actions?wait=10",
                                                json.dumps(lease).encode()))  # fmt: skip
        await timed("why waiting", caller.get(f"/api/v1/actions/{waiting}"))
        await timed("renew", caller.post(f"/api/v1/leases/{held['id']}/renew"))
        await timed("release", caller.post(f"/api/v1/leases/{held['id']}/release"))
        await timed("status", caller.get("/api/v1/status"))
        await timed("list", caller.get("/api/v1/actions?limit=50&state=queued"))
    return spent


def _pss_bytes(root: int) -> dict[str, int]:
    family = [psutil.Process(root), *psutil.Process(root).children(recursive=True)]
    found = {}
    for process in family:
        try:
            text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
            words = process.cmdline()
        except (OSError, psutil.Error):
            continue
        name = words[words.index("-n") + 1].partition("@")[0] if "-n" in words else words[0]
        line = next((line for line in text.splitlines() if line.startswith("Pss:")), "Pss: 0 kB")
        found[f"{os.path.basename(name)} {process.pid}"] = int(line.split()[1]) * 1024
    return found


def _loop_bytes(sizes: dict[str, int]) -> int:
    return sum(size for name, size in sizes.items() if name.startswith("loop"))


async def _measure(stack: Stack, count: int) -> dict[str, Any]:
    caller = await Caller(stack).open()
    before = _pss_bytes(stack.process.pid)
    began = time.perf_counter()
    waiting = await _fill(caller, count)
    filled = time.perf_counter() - began
    await _refill_window(caller)
    spent = await _control(caller, waiting)
    after = _pss_bytes(stack.process.pid)
    status = await caller.get("/api/v1/status")
    return {
        "waiting": count,
        "fill_seconds": round(filled, 2),
        "cycle_p99_ms": round(1000 * status["cycle_seconds"]["p99"], 3),
        "pass_p99_ms": round(1000 * status["pass_seconds"]["p99"], 3),
        "control": {name: quantiles(values) for name, values in spent.items()},
        "loop_bytes_per_action": round((_loop_bytes(after) - _loop_bytes(before)) / count),
        "pss_mb": {name: round(size / 1e6, 1) for name, size in after.items()},
        "pss_total_mb": round(sum(after.values()) / 1e6, 1),
    }


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--actions", type=int, default=100_000)
    options = parser.parse_args()
    with tangram("--cpus", str(CORES)) as stack:
        result = asyncio.run(_measure(stack, options.actions))
    print(json.dumps(result, indent=2))
    print("stored in", store("waiting", result))


if __name__ == "__main__":
    main()
