"""burst: 50,000 submissions at once; how long status and pages take meanwhile, and what is refused.

A process of its own submits, over several connections, one action a request or 1,000 (``--batch 1000``). Beside it
``GET /status`` is asked every 20 ms, and one of three pages in turn every 100 ms, each over a connection of its own,
from the first submission until the scheduler has read the last one. All actions need more cores than are free, so
that they wait and the state of the loop grows.

Target: 99th percentile of status and of each page ≤ 250 ms, no 503, no 429 below 200,000 waiting actions.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Final

from benchmarks.load import exchange, post
from benchmarks.record import quantiles, store
from benchmarks.stack import ROOT, Stack, tangram

STATUS: Final = "/api/v1/status"
PAGES: Final = {"overview": "/", "queues": "/queues/", "actions": "/actions/?q=state:queued"}
STATUS_SECONDS: Final = 0.02
PAGE_SECONDS: Final = 0.1
CORES: Final = 64
#: Longest wait for the scheduler to read what was accepted.
READ_SECONDS: Final = 180.0
#: Submits a session of a user who sees everything.
_SESSION: Final = """
from django.conf import settings
from django.test import Client
from benchmarks.million import watcher
client = Client(SERVER_NAME="localhost")
client.force_login(watcher())
print(settings.SESSION_COOKIE_NAME + "=" + client.cookies[settings.SESSION_COOKIE_NAME].value)
"""


def bodies(actions: int, batch: int) -> list[tuple[str, bytes]]:
    """Return the path and body of each request."""
    one = {"task": "burst", "kind": "exec", "cost": {"cpu": 1}, "exec": {"command": ["true"]}}
    if batch <= 1:
        return [("/api/v1/actions", json.dumps(one).encode())] * actions
    sizes = [min(batch, actions - first) for first in range(0, actions, batch)]
    return [("/api/v1/actions/batch", json.dumps({"actions": [one] * n}).encode()) for n in sizes]


async def submit(
    host: str, port: int, token: str, requests: list[tuple[str, bytes]], connections: int
) -> Counter[int]:
    """Send all requests as fast as they are answered; return how often each status was answered."""
    left, answered = iter(requests), Counter[int]()

    async def one() -> None:
        reader, writer = await asyncio.open_connection(host, port)
        for path, body in left:
            status, answer = await exchange(reader, writer, post(path, token, body))
            answered[status] += 1
            if path.endswith("/batch") and status == 202:
                refused = [item["status"] for item in json.loads(answer)["items"]]
                answered.update(status for status in refused if status != 202)
        writer.close()

    await asyncio.gather(*(one() for _ in range(connections)))
    return answered


def _submit_apart(result: Connection, *arguments: Any) -> None:
    """Submit in a process of its own, so that its work delays no question."""
    began = time.perf_counter()
    answered = asyncio.run(submit(*arguments))
    result.send((dict(answered), time.perf_counter() - began))


def session_of(stack: Stack) -> str:
    """Return the cookie of a new session of a user who sees everything."""
    made = subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), "shell", "-v", "0", "-c", _SESSION],
        env={**os.environ, "TANGRAM_HOME": str(stack.home)},
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    return made.stdout.strip().splitlines()[-1]


class Asker:
    """Asks addresses in turn over one connection, one each ``period_seconds``."""

    def __init__(self, stack: Stack, header: str, addresses: dict[str, str], period: float) -> None:
        self._stack, self._period = stack, period
        self._requests = {
            name: f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{header}\r\n\r\n".encode()
            for name, path in addresses.items()
        }
        self.seconds: dict[str, list[float]] = {name: [] for name in addresses}
        self.refused: Counter[str] = Counter()
        self.last = b""

    async def run(self, over: Callable[[], bool]) -> None:
        """Ask until ``over``; answers other than 200 are counted apart."""
        reader, writer = await asyncio.open_connection(self._stack.host, self._stack.port)
        while not over():
            for name, request in self._requests.items():
                began = time.perf_counter()
                status, self.last = await exchange(reader, writer, request)
                spent = time.perf_counter() - began
                self.seconds[name].append(spent)
                if status != 200:
                    self.refused[f"{name} {status}"] += 1
                await asyncio.sleep(max(0.0, self._period - spent))
        writer.close()

    def rows(self) -> dict[str, dict[str, float]]:
        """Return quantiles and the slowest answer of each address, in milliseconds."""
        return {
            name: {
                **quantiles(seconds),
                "slowest_ms": round(1e3 * max(seconds), 1),
                "answers": len(seconds),
            }
            for name, seconds in self.seconds.items()
            if seconds
        }


async def measure(stack: Stack, actions: int, batch: int, connections: int) -> dict[str, Any]:
    """Submit, and ask meanwhile; return what was answered, and how quickly."""
    token = f"Authorization: Bearer {stack.token}"
    status = Asker(stack, token, {"status": STATUS}, STATUS_SECONDS)
    pages = Asker(stack, f"Cookie: {session_of(stack)}", PAGES, PAGE_SECONDS)
    asked = time.perf_counter()
    await pages.run(lambda: time.perf_counter() - asked > 2.0)  # warm: templates are compiled
    pages = Asker(stack, f"Cookie: {session_of(stack)}", PAGES, PAGE_SECONDS)
    ours, theirs = multiprocessing.Pipe()
    requests = bodies(actions, batch)
    arguments = (theirs, stack.host, stack.port, stack.token, requests, connections)
    sender = multiprocessing.get_context("spawn").Process(target=_submit_apart, args=arguments)
    found: dict[str, Any] = {}
    began = time.perf_counter()

    def over() -> bool:
        """Whether the scheduler has read all that was accepted."""
        if time.perf_counter() - began > READ_SECONDS:
            raise SystemExit("the scheduler has not read all submissions in time")
        if not found and ours.poll():
            answered, seconds = ours.recv()
            found.update(answers=answered, submitted_seconds=round(seconds, 2))
        if not found or not status.last:
            return False
        queued = json.loads(status.last)["pools"]["default"]["queued"]
        accepted = actions - batch_refused(found["answers"], batch)
        return bool(queued >= accepted - CORES)

    sender.start()
    await asyncio.gather(status.run(over), pages.run(over))
    sender.join()
    return {
        **found,
        "read_seconds": round(time.perf_counter() - began, 2),
        "per_second": round(actions / found["submitted_seconds"]),
        "latency": {**status.rows(), **pages.rows()},
        "refused_questions": dict(status.refused + pages.refused),
    }


def batch_refused(answers: dict[int, int], batch: int) -> int:
    """Return how many actions were not accepted; each refused item of a batch is counted by its status."""
    return sum(count for status, count in answers.items() if status != 202)


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--actions", type=int, default=50_000)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--no-store", action="store_true", help="print only")
    options = parser.parse_args()
    with tangram("--cpus", str(CORES)) as stack:
        asyncio.run(_hold(stack))
        row = asyncio.run(measure(stack, options.actions, options.batch, options.connections))
    result = {"actions": options.actions, "batch": options.batch, **row}
    print(json.dumps(result, indent=2))
    if not options.no_store:
        kind = "batches" if options.batch > 1 else "singles"
        print("stored in", store("burst", result, variant=kind))


async def _hold(stack: Stack) -> None:
    """Hold all cores, so that what is submitted waits."""
    reader, writer = await asyncio.open_connection(stack.host, stack.port)
    lease = {"task": "holder", "kind": "lease", "cost": {"cpu": CORES}}
    body = json.dumps({**lease, "lease": {"ttl_seconds": 3600}}).encode()
    status, answer = await exchange(
        reader, writer, post("/api/v1/actions?wait=10", stack.token, body)
    )
    if status != 200:
        raise SystemExit(f"the cores are not granted: {status} {answer[:200]!r}")
    writer.close()


if __name__ == "__main__":
    main()
