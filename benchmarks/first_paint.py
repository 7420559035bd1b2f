"""first_paint: how long each page takes until something stands on the screen, with a million actions.

Target: first contentful paint of every page of the site map within 500 ms, on SQLite and on PostgreSQL
(`console_goals`; a missed one is exit code 1). The rows are made up (`benchmarks.million`); the databases, the
scheduler with a full queue, the web process and Chromium are real. Each page is opened once to warm up
and then several times; the result is the median. Beside it stand the SQL queries of the page and their
time, asked in process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from benchmarks.console_goals import missed
from benchmarks.record import store

if TYPE_CHECKING:
    from tests.faults.system import System

#: Cores that one lease holds, so that all others wait.
CORES = 8
WAITING = 300
#: Page of the site map → the query that names its objects.
_QUERIES: Final = {
    "operations:verb": "target=default",
    "compare:page": "a=task:default/task-0&b=task:default/task-1",
    "configuration:edit": "kind=Pool&name=default",
}
#: Pages about a problem; a healthy system has none.
_NEED_A_PROBLEM: Final = frozenset({"problems:acknowledge"})
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
ANSWERED = "performance.getEntriesByType('navigation')[0].responseStart"


def pages(actions: int) -> dict[str, str]:
    """Return the address of every page, and of lists whose filters find little, by name."""
    named = lists_of(actions)
    return named | {
        f"{name}, as it opens" if name in named else name: address
        for name, address in pages_of_the_site(actions).items()
        if address not in named.values()
    }


def pages_of_the_site(actions: int) -> dict[str, str]:
    """Return the address of each page of the site map that a link opens, by its title, for objects that exist."""
    from benchmarks.million import LIVE, name_of
    from tests.page_addresses import HTML_PAGES, address_of, parameters_of

    given = {
        "action_id": name_of(actions - LIVE - 2),
        "trajectory_key": "default/t-3",
        "task_key": "default/task-0",
        "number": "1",
        "kind": "pool",
        "name": "pause",
    }
    return {
        page.title or page.name: address_of(page, given, _QUERIES.get(page.name, ""))
        for page in HTML_PAGES
        if set(parameters_of(page)) <= set(given) and page.name not in _NEED_A_PROBLEM
    }


def lists_of(actions: int) -> dict[str, str]:
    """Return addresses of lists, of objects and of the admin, by name."""
    from benchmarks.million import LIVE, LONG_TRAJECTORY, name_of

    middle = name_of(actions // 2)
    return {
        "Overview": "/",
        "Overview, 14 days": "/?range=1209600",
        "Queues": "/queues/",
        "Actions": "/actions/?q=",
        "Actions, one by its id": f"/actions/?q=id:{middle}",
        "Actions that wait": "/actions/?q=state:queued",
        "Actions that run": "/actions/?q=state:running",
        "Actions lost to failures": "/actions/?q=outcome:infra_failed",
        "… of one task": "/actions/?q=outcome:infra_failed+task:task-3",
        "… that were lost": "/actions/?q=outcome:unknown",
        "Actions of a task": "/actions/?q=task:task-3",
        "Finished ones of a trajectory": f"/actions/?q=state:finished+trajectory:{LONG_TRAJECTORY}",
        "An action": f"/actions/{name_of(actions - LIVE - 2)}/",
        "Trajectories": "/trajectories/?q=",
        "Trajectories of a task": "/trajectories/?q=task:task-3",
        "Open trajectories": "/trajectories/?q=state:open+project:default",
        "A trajectory": "/trajectories/default/t-3/",
        "The longest trajectory": f"/trajectories/default/{LONG_TRAJECTORY}/",
        "Tasks": "/tasks/",
        "The largest task": "/tasks/default/task-0/",
        "CPU": "/cpu/",
        "GPU": "/gpu/",
        "APIs": "/apis/",
        "Decisions": "/decisions/",
        "Workers": "/workers/",
        "Admin: actions": "/admin/records/actionrecord/",
        "Admin: trajectories": "/admin/records/trajectoryrecord/",
    }


def ask_all(actions: int) -> dict[str, dict[str, float]]:
    """Return what each page asks of the database, by name: queries, their time, the slowest one."""
    from django.db import connection
    from django.test import Client
    from django.test.utils import CaptureQueriesContext

    from benchmarks.million import watcher

    client = Client(SERVER_NAME="localhost")
    client.force_login(watcher())
    found = {}
    for name, address in pages(actions).items():
        client.get(address)
        with CaptureQueriesContext(connection) as asked:
            answer = client.get(address)
        if answer.status_code != 200:
            raise SystemExit(f"{address}: {answer.status_code}")
        times = [1e3 * float(query["time"]) for query in asked.captured_queries]
        found[name] = {"queries": len(times), "sql_ms": round(sum(times), 1),
                       "slowest_ms": round(max(times, default=0.0), 1)}  # fmt: skip
    return found


def paint_all(base: str, login: str, actions: int, times: int) -> dict[str, dict[str, float]]:
    """Return milliseconds to the first byte and the first contentful paint of each page."""
    from playwright.sync_api import sync_playwright

    found = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        page = browser.new_context(viewport={"width": 1360, "height": 900}).new_page()
        page.goto(login)
        for name, address in pages(actions).items():
            seen = []
            for _ in range(times + 1):
                answer = page.goto(base + address, wait_until="commit")
                if answer is None or answer.status != 200 or "/login/" in page.url:
                    raise SystemExit(f"{address} leads to {page.url}")
                page.wait_for_function(f"() => {PAINTED} !== undefined", timeout=120_000)
                seen.append((page.evaluate(ANSWERED), page.evaluate(PAINTED)))
            answered, painted = zip(*seen[1:], strict=True)
            found[name] = {"first_byte_ms": round(median(answered)), "paint_ms": round(median(painted)),
                           "slowest_paint_ms": round(max(painted))}  # fmt: skip
            print(f"  {name:32} {found[name]}", flush=True)
        browser.close()
    return found


@contextmanager
def served(system: System, actions: int) -> Iterator[dict[str, str]]:
    """Fill the database, start everything, and let actions wait; yields how to get in."""
    try:
        access = system.start_only()
        began = time.monotonic()
        _in_process("--fill", actions, system.environment)
        print(f"  filled in {time.monotonic() - began:.0f} s", flush=True)
        for part in system.parts.values():
            if not part.alive:
                part.start()
        system.wait_until_served()
        task = {"task": "held", "cost": {"cpu": CORES}}
        _post(
            system,
            "/api/v1/actions?wait=30",
            {**task, "kind": "lease", "lease": {"ttl_seconds": 3600}},
        )
        waiting = {**task, "kind": "exec", "exec": {"command": ["true"]}}
        _post(system, "/api/v1/actions/batch", {"actions": [waiting] * WAITING})
        yield access
    finally:
        system.stop()


def measure(kind: str, actions: int, times: int) -> dict[str, dict[str, float]]:
    """Return all numbers of all pages on one kind of database."""
    from tests.faults.system import System
    from tests.postgres_server import PostgresServer

    print(kind, flush=True)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tangram-paint-")))
        server = None
        if kind == "postgresql":
            server = PostgresServer().create()
            stack.callback(server.stop)
        system = System(directory, cpus=CORES, postgres=server)
        access = stack.enter_context(served(system, actions))
        asked = json.loads(_in_process("--ask", actions, system.environment))
        painted = paint_all(access["url"], access["login_url"], actions, times)
    return {name: painted[name] | asked[name] for name in painted}


def _in_process(what: str, actions: int, environment: Mapping[str, str]) -> str:
    command = [sys.executable, "-m", "benchmarks.first_paint", what, "--actions", str(actions)]
    settings = {"DJANGO_SETTINGS_MODULE": "tangram_web.settings"}
    done = subprocess.run(command, env={**os.environ, **environment, **settings}, check=True,
                          stdout=subprocess.PIPE, text=True)  # fmt: skip
    return done.stdout


def _post(system: System, path: str, body: object) -> None:
    headers = {"Authorization": f"Bearer {system.token}", "Content-Type": "application/json"}
    asked = urllib.request.Request(system.address.url + path, json.dumps(body).encode(), headers)
    urllib.request.urlopen(asked, timeout=60).close()


def main() -> int:
    """Measure, print, store; return 1 where a page is later than its goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--actions", type=int, default=1_000_000)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--databases", nargs="+", default=["sqlite", "postgresql"])
    parser.add_argument("--no-store", action="store_true", help="only print")
    parser.add_argument("--fill", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--ask", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    import django

    if options.fill or options.ask:
        django.setup()
        from benchmarks.million import fill

        if options.fill:
            fill(options.actions)
        else:
            print(json.dumps(ask_all(options.actions)))
        return 0
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tangram_web.settings")
    django.setup()
    result = {kind: measure(kind, options.actions, options.times) for kind in options.databases}
    problems = [
        f"{kind}: {each}" for kind, found in result.items() for each in missed("paint", found)
    ]
    print("missed:", "\n        ".join(problems) or "none")
    body = {"actions": options.actions, "missed": problems, "databases": result}
    if not options.no_store:
        print("stored in", store("first_paint", body))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
