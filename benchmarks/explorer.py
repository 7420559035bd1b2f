"""explorer: how long stored queries of the explorer take with a million actions.

Target: the first page of forty stored queries within 300 ms at the 95th percentile, and its counts and
facets within 2 s, on SQLite and on PostgreSQL. The rows are made up (`benchmarks.million`); the database
is real, and the code is that of the page. Each query is read once to warm up and then several times.

``--insertion`` measures what the indexes of the explorer cost the projection: rows are inserted as queued
and updated as finished, in batches of 500, with and without these indexes in turn.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from benchmarks.record import quantiles, store_parts

#: Tab, query and order (empty: the usual one).
STORED: Final = (
    ("actions", "since:1h", ""),
    ("actions", "", ""),
    ("actions", "state:queued", ""),
    ("actions", "state:queued,running", "act"),
    ("actions", "state:queued act:>5s since:1h", "act"),
    ("actions", "since:1h", "act"),
    ("actions", "since:1h", "queue"),
    ("actions", "since:1h", "execution"),
    ("actions", "since:1h", "finished"),
    ("actions", "since:1h", "exit"),
    ("actions", "since:24h", "act"),
    ("actions", "", "act"),
    ("actions", "", "queue"),
    ("actions", "", "finished"),
    ("actions", "", "exit"),
    ("actions", "", "task"),
    ("actions", "task:task-3 since:1h", "act"),
    ("actions", "task:task-3", ""),
    ("actions", "task:task-3", "act"),
    ("actions", "task:task-1* act:>5s since:1h", "act"),
    ("actions", "task:task-1* act:>5s", "act"),
    ("actions", "exit:!=0", ""),
    ("actions", "exit:137", ""),
    ("actions", "exit:!=0 task:task-7 since:24h", "act"),
    ("actions", "exit:137 since:1h", "act"),
    ("actions", "outcome:timeout", ""),
    ("actions", "outcome:infra_failed", ""),
    ("actions", "outcome:infra_failed task:task-3", "act"),
    ("actions", "outcome:unknown", ""),
    ("actions", "trajectory:t-long", "act"),
    ("actions", "t-17", ""),
    ("actions", "door:e2b since:1h act:>10s", "act"),
    ("actions", "node:n1 kind:exec family:test since:1h", "queue"),
    ("actions", "reward:none outcome:cancelled,timeout", ""),
    ("actions", "-task:task-0 since:1h act:1s..5s", "act"),
    ("actions", "step:12 queue:>2s", "queue"),
    ("actions", "project:default state:finished until:24h", ""),
    ("trajectories", "since:24h", ""),
    ("trajectories", "task:task-3 actions:>20", "external"),
    ("tasks", "", "failing"),
)
TIMES: Final = 5
INSERTED: Final = 20_000
BATCH: Final = 500
OWN_INDEXES: Final = ("action_act", "action_queue", "action_failing")


def run_query(tab_name: str, text: str, order_name: str, now: float) -> Callable[[], int]:
    """Return a function that reads the first page of a stored query."""
    from tangram_web.explorer.fields import TABS
    from tangram_web.explorer.language import parse
    from tangram_web.explorer.orders import order_of, orders_of
    from tangram_web.explorer.reading import read_page
    from tangram_web.live.access import Sight

    tab = TABS[tab_name]
    order = order_of(tab, order_name) or orders_of(tab)[0]

    def read() -> int:
        query = parse(tab, text)
        return len(read_page(tab, query, Sight(), order, falls=order.falls, now=now).rows)

    return read


def count_query(tab_name: str, text: str, now: float) -> Callable[[], int]:
    """Return a function that counts what a stored query finds, with its facets."""
    from tangram_web.explorer.facets import count_rows
    from tangram_web.explorer.fields import TABS
    from tangram_web.explorer.language import parse
    from tangram_web.live.access import Sight

    tab = TABS[tab_name]
    return lambda: count_rows(tab, parse(tab, text), Sight(), now).total


def timed(work: Callable[[], int], times: int) -> tuple[list[float], int]:
    """Return the seconds of each run after the first, and the result."""
    work()
    seconds, found = [], 0
    for _ in range(times):
        began = time.perf_counter()
        found = work()
        seconds.append(time.perf_counter() - began)
    return seconds, found


def measure(rows: int, times: int) -> dict[str, Any]:
    """Fill the database and time all stored queries."""
    from benchmarks.million import fill
    from benchmarks.million_times import APART_SECONDS, BEGUN

    began = time.monotonic()
    fill(rows)
    print(f"  filled in {time.monotonic() - began:.0f} s", flush=True)
    now = BEGUN + rows * APART_SECONDS + 1
    pages, counts, each = [], [], {}
    for tab, text, order in STORED:
        seconds, found = timed(run_query(tab, text, order, now), times)
        counted, total = timed(count_query(tab, text, now), 1)
        pages += seconds
        counts += counted
        name = f"{tab} {text or 'all'}{order and f' by {order}'}"
        each[name] = {"page_ms": round(statistics.median(seconds) * 1e3, 1), "rows": found,
                      "count_ms": round(counted[0] * 1e3, 1), "total": total}  # fmt: skip
        print(f"  {name:62} {each[name]}", flush=True)
    return {
        "rows": rows,
        "pages": {**quantiles(pages), "max_ms": round(max(pages) * 1e3, 1)},
        "counts": {**quantiles(counts), "max_ms": round(max(counts) * 1e3, 1)},
        "queries": each,
    }


def insertion(rounds: int = 5) -> dict[str, Any]:
    """Return what a row costs with and without the indexes of the explorer, in turn."""
    from django.db import connection

    from tangram_web.records.models import ActionRecord

    own = [index for index in ActionRecord._meta.indexes if index.name in OWN_INDEXES]
    seconds: dict[str, list[float]] = {"with": [], "without": []}
    for number in range(rounds):
        for name in ("without", "with") if number % 2 else ("with", "without"):
            with connection.schema_editor() as editor:
                for index in own if name == "without" else ():
                    editor.remove_index(ActionRecord, index)
            seconds[name].append(_write_rows(number))
            with connection.schema_editor() as editor:
                for index in own if name == "without" else ():
                    editor.add_index(ActionRecord, index)
            ActionRecord.objects.filter(id__startswith="act_x").delete()
    medians = {
        name: round(statistics.median(each) / INSERTED * 1e6, 1) for name, each in seconds.items()
    }
    return {
        "microseconds_of_a_row": medians,
        "ratio": round(medians["with"] / medians["without"], 3),
        "rows": INSERTED * rounds,
    }


def _write_rows(number: int) -> float:
    """Insert rows and finish them, as the projection does; return the seconds."""
    from django.db import connection, transaction

    from benchmarks.million import actions_as_rows
    from tangram_web.records.action_rows import BLANK

    marks, names = ", ".join(["%s"] * len(BLANK)), ", ".join(f'"{name}"' for name in BLANK)
    insert = f"INSERT INTO records_actionrecord ({names}) VALUES ({marks})"
    changed = ("state", "outcome", "units", "node", "exit_code", "result", "reward", "granted_at",
               "started_at", "finished_at", "queue_seconds", "overhead_seconds", "execution_seconds",
               "act_seconds", "finished_seq", "door")  # fmt: skip
    update = f"UPDATE records_actionrecord SET {', '.join(f'{name} = %s' for name in changed)} WHERE id = %s"
    rows = [
        {**row, "id": f"act_x{number}{row['id'][4:]}"} for row in actions_as_rows(INSERTED)
    ]  # fmt: skip
    blank = [tuple((row | {name: BLANK[name] for name in changed}).values()) for row in rows]
    ends = [(*(row[name] for name in changed), row["id"]) for row in rows]
    began = time.perf_counter()
    for first in range(0, INSERTED, BATCH):
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.executemany(insert, blank[first : first + BATCH])
            cursor.executemany(update, ends[first : first + BATCH])
    return time.perf_counter() - began


def main() -> None:
    """Measure in a process of its own on a new database, print, store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--times", type=int, default=TIMES)
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--insertion", action="store_true")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        _inside(options)
        return
    with ExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory(prefix="tangram-explorer-"))
        environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tangram_web.settings"}
        environment |= _database(options.database, Path(home), stack)
        command = [sys.executable, "-m", "benchmarks.explorer", "--inside", *sys.argv[1:]]
        subprocess.run(command, env=environment, check=True)


def _database(kind: str, home: Path, stack: ExitStack) -> Mapping[str, str]:
    if kind == "sqlite":
        return {"DATABASE_URL": f"sqlite:///{home / 'rows.sqlite3'}"}
    from tests.postgres_server import PostgresServer

    server = PostgresServer().create()
    stack.callback(server.stop)
    return {"DATABASE_URL": server.url}


def _inside(options: argparse.Namespace) -> None:
    import django

    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    sys.argv.remove("--inside")
    if options.insertion:
        found = insertion()
        print(found)
        print("stored in", store_parts("explorer", {f"{options.database} insertion": found}))
        return
    found = measure(options.rows, options.times)
    print("pages", found["pages"], "counts", found["counts"])
    print("stored in", store_parts("explorer", {options.database: found}))


if __name__ == "__main__":
    main()
