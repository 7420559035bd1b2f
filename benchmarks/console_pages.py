"""console_pages: the Trace page of an hour, the effect of each verb, and numbers that pages show of the same thing.

    trace     an hour of actions among a million rows, from the navigation until the page answers a key; goal 1 s
    effects   the simulated effect of each verb, from the navigation on, beside a queue and after a load; goal 3 s for each verb
    figures   a crawler reads every figure that two pages share after the load has stopped (`benchmarks.figures`); goal: no contradiction

A missed goal (`console_goals`) is exit code 1. Databases, scheduler, nodes, web process and Chromium are real. The rows of
``trace`` are made up (`benchmarks.million`); for the other parts real commands run for ``--load-seconds``,
then leases hold all cores and actions wait, while calls that need no core go on.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final

from benchmarks.console_effects import API, API_UNITS, DECLARED, METERED, TASK, measure_effects
from benchmarks.console_goals import missed
from benchmarks.figures import contradictions, crawl, shared
from benchmarks.record import store_parts

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.faults.system import System

PARTS: Final = ("trace", "effects", "figures")
NODES, CORES, WAITING, CALLS_WAITING = 2, 8, 50, 5
HOUR: Final = 3600
BATCH: Final = 20
#: Pages whose figures are compared.
PAGES: Final = {
    "Overview": "/",
    "Queues": "/queues/",
    "Operate": "/operate/",
    "APIs": "/apis/",
    "Tasks": "/tasks/",
    "Trajectories": "/trajectories/",
    "Task that waits": f"/tasks/default/{TASK}/",
    "Task of the load": "/tasks/default/load/",
    "Report of the load": "/tasks/default/load/report/",
    "Pause of the pool": "/act/pool/pause/?target=default",
    "Policy of the pool": "/act/pool/policy/?target=default",
    "Pause of the task": f"/act/task/pause/?target=default/{TASK}",
    "Cancel of the task": f"/act/task/cancel/?target=default/{TASK}",
}
_READ: Final = """() => {
  const said = document.querySelector("tg-trace [role=status]")?.textContent ?? "";
  return said && !said.startsWith("Loading") ? said : null;
}"""
#: Presses a key, and resolves when the frame after it is drawn.
_ANSWERED: Final = """async () => {
  document.querySelector("tg-trace canvas").dispatchEvent(new KeyboardEvent("keydown", { key: "+", bubbles: true }));
  await new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)));
  return performance.now();
}"""
_BYTES: Final = """() => performance.getEntriesByType("resource")
  .filter(each => new URL(each.name).pathname.startsWith("/trace/"))
  .reduce((sum, each) => sum + each.transferSize, 0)"""


@contextmanager
def signed_in(login: str) -> Iterator[Page]:
    """Open Chromium, signed in."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        page = browser.new_context(viewport={"width": 1360, "height": 900}).new_page()
        page.goto(login)
        yield page
        browser.close()


def measure_trace(actions: int, times: int) -> dict[str, Any]:
    """Open the trace of the newest hour of the rows."""
    from benchmarks.first_paint import served
    from benchmarks.million_times import APART_SECONDS, BEGUN
    from tests.faults.system import System

    to = int(BEGUN + actions * APART_SECONDS)
    seen = []
    with tempfile.TemporaryDirectory(prefix="tangram-trace-") as directory:
        system = System(Path(directory), cpus=CORES)
        with served(system, actions) as access, signed_in(access["login_url"]) as page:
            for _ in range(times + 1):
                page.goto(f"{access['url']}/trace/?range={HOUR}&to={to}", wait_until="commit")
                said = page.wait_for_function(_READ, timeout=120_000).json_value()
                seen.append(page.evaluate(_ANSWERED))
            sent = page.evaluate(_BYTES)
    if "cannot be read" in said:
        raise SystemExit(said)
    return {
        "actions": actions,
        "says": said,
        "kilobytes": round(sent / 1e3),
        "interactive_ms": round(median(seen[1:])),
        "slowest_ms": round(max(seen[1:])),
    }


def asker(system: System) -> Callable[[str, str, object], Any]:
    """Return a function that asks the API: JSON, or a text as YAML."""

    def ask(method: str, path: str, body: object) -> Any:
        text = isinstance(body, str)
        headers = {
            "Authorization": f"Bearer {system.token}",
            "Content-Type": "application/yaml" if text else "application/json",
        }
        data = str(body).encode() if text else json.dumps(body).encode()
        asked = urllib.request.Request(
            system.address.url + path, None if method == "GET" else data, headers, method=method
        )
        with urllib.request.urlopen(asked, timeout=120) as answer:
            return json.loads(answer.read() or b"null")

    return ask


def load(ask: Callable[[str, str, object], Any], seconds: float, rate: float) -> int:
    """Submit short commands for a while, and wait until all have ended; return their number."""
    command = {"task": "load", "kind": "exec", "exec": {"command": ["sleep", "0.2"]}}
    elastic = {**command, "cost": {"cpu": [1, 2]}, "duration_seconds": 0.2}
    call = {"task": "load", "kind": "noop", "cost": {API: 1, METERED: 1}}
    calls = [{**call, "trajectory": f"load-{number}"} for number in range(2)]
    began, sent = time.monotonic(), 0
    while time.monotonic() < began + seconds:
        ask("POST", "/api/v1/actions/batch", {"actions": [elastic] * (BATCH - len(calls)) + calls})
        sent += BATCH
        time.sleep(max(0.0, began + sent / rate - time.monotonic()))
    until = time.monotonic() + 600
    while time.monotonic() < until:
        if ask("GET", "/api/v1/tasks/load", None)["finished"] == sent:
            return sent
        time.sleep(0.5)
    raise SystemExit("the load did not end within 10 minutes")


def hold(ask: Callable[[str, str, object], Any]) -> list[str]:
    """Let leases hold all cores and actions wait; return the ids of these once the rows show them."""
    lease = {"task": TASK, "kind": "lease", "lease": {"ttl_seconds": 3600}}
    for cost in (*[{"cpu": CORES}] * NODES, {API: API_UNITS}):
        ask("POST", "/api/v1/actions?wait=30", {**lease, "cost": cost})
    command = {"task": TASK, "kind": "exec", "exec": {"command": ["true"]}, "cost": {"cpu": 1}}
    call = {"task": TASK, "kind": "noop", "cost": {API: 1}}
    waits = [command] * WAITING + [call] * CALLS_WAITING
    ask("POST", "/api/v1/actions/batch", {"actions": waits})
    until = time.monotonic() + 120
    while time.monotonic() < until:
        rows = ask("GET", f"/api/v1/actions?task={TASK}&state=queued&limit=500", None)["results"]
        if len(rows) == len(waits):
            return [row["id"] for row in rows]
        time.sleep(0.5)
    raise SystemExit("the actions that wait are not in the rows")


@contextmanager
def trickle(ask: Callable[[str, str, object], Any]) -> Iterator[None]:
    """Let calls that need no core go on: an effect is simulated from the actions of the last minute."""
    call = {"task": "load", "kind": "noop", "cost": {METERED: 1}}
    ended = Event()

    def send() -> None:
        while not ended.wait(1.0):
            ask("POST", "/api/v1/actions/batch", {"actions": [call] * 2})

    sender = Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        ended.set()
        sender.join()


def measure_live(parts: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    """Measure effects and figures on one system, after the load has stopped."""
    from tests.faults.system import System

    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="tangram-pages-") as directory:
        system = System(Path(directory), cpus=CORES, nodes=NODES)
        try:
            access = system.start_only()
            for part in system.parts.values():
                if not part.alive:
                    part.start()
            system.wait_until_whole()
            ask = asker(system)
            ask("POST", "/api/v1/config/apply", DECLARED)
            sent = load(ask, options.load_seconds, options.rate)
            waiting = hold(ask)
            with signed_in(access["login_url"]) as page:
                if "figures" in parts:
                    found["figures"] = {"actions": sent, **compared(page, access["url"])}
                if "effects" in parts:
                    with trickle(ask):
                        found["effects"] = measure_effects(
                            page, access["url"], ask, waiting, options.times
                        )
        finally:
            system.stop()
    return found


def compared(page: Page, base: str) -> dict[str, Any]:
    """Return how many figures two places share, and those that contradict each other."""
    shown = crawl(page, base, PAGES)
    return {
        "pages": len(PAGES),
        "figures": len(shown),
        "compared": len(shared(shown)),
        "contradictions": {
            f"{fact.figure} of {fact.scope}": places
            for fact, places in contradictions(shown).items()
        },
    }


def main() -> int:
    """Measure, print, store; return 1 where a goal is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument(
        "--actions", type=int, default=1_000_000, help="rows of the trace's database"
    )
    parser.add_argument("--times", type=int, default=5, help="openings of a page, after one")
    parser.add_argument("--load-seconds", type=float, default=180.0)
    parser.add_argument("--rate", type=float, default=20.0, help="commands a second of the load")
    parser.add_argument("--no-store", action="store_true", help="only print")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    if "trace" in options.only:
        found["trace"] = measure_trace(options.actions, options.times)
    if {"effects", "figures"} & set(options.only):
        found |= measure_live(options.only, options)
    problems = [each for part, row in found.items() for each in missed(part, row)]
    print(json.dumps(found, indent=2))
    print("missed:", "\n        ".join(problems) or "none")
    if not options.no_store:
        print("stored in", store_parts("console_pages", found))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
