"""console: what live pages cost at 10,000 actions a second, in a real Chromium and at the server.

Targets of each page, over 60 s: main-thread work of at most 4 ms for each message on average, no task above 100 ms,
a flat heap, at most 200 KB/s for a client (`console_goals`; a missed one is exit code 1); the web process
at most 10 % of a core for 20 clients.

The actions are simulated: a process writes the journal of the paper's testbed (15 nodes of 256 cores and 8 declared GPUs)
into the fold that the projector uses, and publishes its frames as the projector does, those that are
judged once a second included. Redis, the channel layer, the web process, the websocket and the browser
are real.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event as Flag
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

import psutil

from benchmarks.console_goals import missed
from benchmarks.record import store
from domain.action import Action, ExecSpec, Kind, Outcome, Timing
from domain.allocation import Allocation
from domain.codec import JournalEntry
from domain.decisions import Decision, Finish, Grant
from domain.events import ActionFinished, ActionStarted, ActionSubmitted, Event, NodeJoined
from domain.ids import action_id, node_resource
from domain.inventory import NodeInventory, ResourceInventory

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

NODES, CORES, GPUS = 15, 256, 8
#: Pages that follow frames.
LIVE: Final = {"Overview": "/", "CPU": "/cpu/", "GPU": "/gpu/"}
#: A page settles for this long before it is measured.
SETTLED_MS: Final = 10_000
TICK_SECONDS = 0.01
FRAME_SECONDS = 0.25
HOLD_SECONDS = 0.2
#: Tells the browser to remember every task of its main thread above 50 ms.
WATCH = """
window.longTasks = [];
new PerformanceObserver(list => window.longTasks.push(...list.getEntries().map(e => e.duration)))
  .observe({ type: "longtask", buffered: true });
"""


class Testbed:
    """Actions that come, hold one core for a while, and end: one journal entry per tick."""

    def __init__(self, rate: float) -> None:
        self._per_tick = rate * TICK_SECONDS
        self._owed = 0.0
        self._number = self._seq = 0
        self._free = deque((f"n{n}", core) for core in range(CORES) for n in range(1, NODES + 1))
        self._running: deque[tuple[float, Action, str, int]] = deque()
        self.offset = time.time() - time.monotonic()

    def joined(self) -> JournalEntry:
        """Return the entry in which all nodes join."""
        cores = tuple(range(CORES))
        have = {
            "cpu": ResourceInventory(CORES * 1000, (cores[:128], cores[128:]), True),
            "gpu": ResourceInventory(GPUS * 1000, (tuple(range(GPUS)),), True),
        }
        events: list[Event] = [
            NodeJoined(node=NodeInventory(f"n{n}", f"id-{n}", 1, "default", have))
            for n in range(1, NODES + 1)
        ]
        return self._entry(time.monotonic(), events, [])

    def tick(self, at: float) -> JournalEntry:
        """Return what happened until ``at``."""
        events: list[Event] = []
        decisions: list[Decision] = []
        while self._running and self._running[0][0] <= at:
            _, action, node, core = self._running.popleft()
            self._free.append((node, core))
            events.append(
                ActionFinished(action_id=action.id, node=node, outcome=Outcome.COMPLETED,
                               execution_seconds=HOLD_SECONDS)
            )  # fmt: skip
            timing = Timing(0.001, 0.002, HOLD_SECONDS, HOLD_SECONDS + 0.003)
            decisions.append(
                Finish(action.id, "default", action.task, Outcome.COMPLETED, timing,
                       trajectory=action.trajectory, node=node)
            )  # fmt: skip
        self._owed += self._per_tick
        while self._owed >= 1 and self._free:
            self._owed -= 1
            action, (node, core) = self._action(), self._free.popleft()
            held = Allocation(node_resource("cpu", node), 1000, (core,))
            events.append(ActionSubmitted(action=action))
            events.append(ActionStarted(action_id=action.id, node=node))
            decisions.append(Grant(action.id, node, (held,)))
            self._running.append((at + HOLD_SECONDS, action, node, core))
        return self._entry(at, events, decisions)

    def _action(self) -> Action:
        self._number += 1
        name = action_id(1_700_000_000_000 + self._number, self._number.to_bytes(8, "big"))
        return Action(
            id=name, project="default", task="bench", kind=Kind.EXEC, cost={"cpu": (1000,)},
            trajectory=f"t{self._number % 1536}", exec=ExecSpec(("true",)),
        )  # fmt: skip

    def _entry(self, at: float, events: list[Event], decisions: list[Decision]) -> JournalEntry:
        self._seq += 1
        for event in events:
            event.at = at
        return JournalEntry(self._seq, 1, at, self.offset, "0-1", events, decisions)


def publish(rate: float) -> None:
    """Fold and publish for ever; prints how many actions a second it manages, once a second."""
    import django

    django.setup()
    from channels.layers import get_channel_layer
    from django.conf import settings

    from scheduler.runtime.redis.clients import connect
    from tangram_web.live.frames import FrameFold
    from tangram_web.live.publisher import FramePublisher
    from tangram_web.problems.watch import watch

    Thread(target=watch, args=(Flag(),), name="problems", daemon=True).start()
    client, fold, testbed = connect(settings.TANGRAM_REDIS_URL), FrameFold(), Testbed(rate)
    fold.fold(testbed.joined())
    next_at = began = printed_at = time.monotonic()
    shown = ticks = 0
    with FramePublisher(get_channel_layer(), client, settings.TANGRAM_KEY_PREFIX) as publisher:
        while True:
            fold.fold(testbed.tick(next_at))
            ticks, next_at = ticks + 1, next_at + TICK_SECONDS
            if next_at - began >= shown * FRAME_SECONDS:
                shown += 1
                publisher.publish(fold.frames(next_at))
            now = time.monotonic()
            if now - printed_at >= 1:
                print(round(ticks * TICK_SECONDS * rate / (now - printed_at)), flush=True)
                printed_at, ticks = now, 0
            if now > next_at + 1:
                next_at = now  # it cannot keep up: say so by the rate, not by lagging behind
            time.sleep(max(0.0, next_at - now))


@contextmanager
def source(environment: dict[str, str], rate: float) -> Iterator[Path]:
    """Run `publish` in a process of its own; yields the file of the rates it managed."""
    with tempfile.NamedTemporaryFile("w+", suffix=".rates") as rates:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.console", "--publish", str(rate)],
            stdout=rates, env={**os.environ, **environment,
                               "DJANGO_SETTINGS_MODULE": "tangram_web.settings"},
        )  # fmt: skip
        try:
            yield Path(rates.name)
        finally:
            process.terminate()
            process.wait()


def main_thread_seconds() -> float:
    """Return the CPU time of the main threads of our browser's pages.

    What the browser says of its work is wall time: on a busy machine it holds who else ran.
    """
    seconds = 0.0
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if any(word == "--type=renderer" for word in process.cmdline()):
                times = [each for each in process.threads() if each.id == process.pid]
                seconds += sum(each.user_time + each.system_time for each in times)
    return seconds


def measure_browser(
    url: str, login: str, seconds: float, pages: Mapping[str, str]
) -> tuple[dict[str, dict[str, Any]], str]:
    """Watch each page for a while; return what each cost, and the cookie of the session."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        context = browser.new_context(viewport={"width": 1360, "height": 900})
        first = context.new_page()
        first.goto(login)
        first.close()
        found = {}
        for name, address in pages.items():
            found[name] = _watched(context, url + address, seconds)
            print(f"{name:34} {found[name]}", flush=True)
        cookies = "; ".join(f"{c['name']}={c['value']}" for c in context.cookies())
        browser.close()
    return found, cookies


def _watched(context: BrowserContext, address: str, seconds: float) -> dict[str, Any]:
    """Open a page, let it settle, and return what it costs while frames come."""
    received: list[int] = []
    page = context.new_page()
    page.add_init_script(WATCH)
    page.on(
        "websocket",
        lambda ws: ws.on("framereceived", lambda data: received.append(len(data or b""))),
    )
    page.goto(address)
    page.wait_for_timeout(SETTLED_MS)
    devtools = context.new_cdp_session(page)
    devtools.send("Performance.enable")

    def look() -> dict[str, float]:
        devtools.send("HeapProfiler.collectGarbage")
        metrics = devtools.send("Performance.getMetrics")["metrics"]
        return {metric["name"]: metric["value"] for metric in metrics}

    page.evaluate("window.longTasks.length = 0")
    heaps, received[:] = [look()["JSHeapUsedSize"]], []
    before, cpu_before = look(), main_thread_seconds()
    for _ in range(4):
        page.wait_for_timeout(seconds * 250)
        heaps.append(look()["JSHeapUsedSize"])
    after, cpu = look(), main_thread_seconds() - cpu_before
    cost = _cost_of(before, after, received, cpu, heaps)
    cost["long_tasks_ms"] = _longest(page)
    page.close()
    return cost


def _longest(page: Page) -> list[int]:
    """Return the longest tasks of the main thread, in milliseconds."""
    return sorted((round(each) for each in page.evaluate("window.longTasks")), reverse=True)[:10]


def _cost_of(
    before: Mapping[str, float],
    after: Mapping[str, float],
    received: list[int],
    cpu: float,
    heaps: list[float],
) -> dict[str, Any]:
    """Return the cost of a page between two looks at its metrics, during which it received messages of these sizes."""
    messages, work = len(received), after["TaskDuration"] - before["TaskDuration"]
    passed = after["Timestamp"] - before["Timestamp"]
    return {
        "messages": messages,
        "moments": round(passed / FRAME_SECONDS),
        "main_thread_ms_per_message": round(1e3 * work / max(1, messages), 2),
        "main_thread_ms_per_moment": round(1e3 * work * FRAME_SECONDS / passed, 2),
        "main_thread_cpu_ms_per_message": round(1e3 * cpu / max(1, messages), 2),
        "kilobytes_per_second": round(sum(received) / passed / 1e3, 1),
        "heap_megabytes": [round(heap / 1e6, 2) for heap in heaps],
    }


async def _watch(url: str, cookies: str, clients: int, seconds: float) -> None:
    """Receive what a page receives, in so many clients at once."""
    from websockets.asyncio.client import connect
    from websockets.typing import Origin

    async def one() -> None:
        async with connect(
            url, origin=Origin(re.sub("^ws", "http", url.removesuffix("/ws/live/"))),
            additional_headers={"Cookie": cookies}, compression=None, max_size=None,
        ) as socket:  # fmt: skip
            await socket.send('{"sub": ["overview", "nodes"], "hz": 4}')
            while True:
                await socket.recv()

    tasks = [asyncio.ensure_future(one()) for _ in range(clients)]
    ended, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for task in tasks:
        task.cancel()
    for task in ended:
        task.result()  # a client that was thrown out is no client


def measure_server(pid: int, url: str, cookies: str, clients: int, seconds: float) -> float:
    """Return the percent of a core that the web process takes for so many clients."""
    process = psutil.Process(pid)
    before, began = process.cpu_times(), time.monotonic()
    if clients:
        asyncio.run(_watch(url, cookies, clients, seconds))
    else:
        time.sleep(seconds)
    after = process.cpu_times()
    spent = after.user + after.system - before.user - before.system
    return round(100 * spent / (time.monotonic() - began), 2)


def _wait_until_up(url: str) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(f"{url}/livez", timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise SystemExit(f"{url} does not answer")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure pages and server while frames are published."""
    from tests.faults.system import System

    pages = {name: LIVE[name] for name in options.pages}
    with tempfile.TemporaryDirectory() as directory:
        system = System(Path(directory))
        try:
            access = system.start_only("web")
            _wait_until_up(access["url"])
            with source(dict(system.environment), options.rate) as rates:
                found, cookies = measure_browser(
                    access["url"], access["login_url"], options.seconds, pages
                )
                socket = re.sub("^http", "ws", access["url"]) + "/ws/live/"
                share = {
                    str(count): measure_server(
                        system["web"].pid, socket, cookies, count, options.seconds / 3
                    )
                    for count in (0, options.clients)
                }
                managed = sorted(map(int, rates.read_text().split()))
        finally:
            system.stop()
    return {
        "rate_wanted": options.rate,
        "rate_managed_median": managed[len(managed) // 2],
        "pages": found,
        "web_percent_of_a_core_by_clients": share,
    }


def main() -> int:
    """Measure, print, store; return 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--publish", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--rate", type=float, default=10_000.0, help="actions a second")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each page")
    parser.add_argument("--pages", nargs="+", choices=LIVE, default=list(LIVE))
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--no-store", action="store_true", help="only print")
    options = parser.parse_args()
    if options.publish:
        publish(options.publish)
        return 0
    result = measure(options)
    problems = missed("live", result["pages"])
    result["missed"] = problems
    for name in ("rate_managed_median", "web_percent_of_a_core_by_clients", "missed"):
        print(f"{name:34} {result[name]}")
    if not options.no_store:
        print("stored in", store("console", result))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
