"""faults: each part is killed again and again under load; what is lost, run twice, and how long.

Targets: 50 rounds of each kill with 1,000 declared-core actions in flight: nothing lost, nothing
run twice, service back within 3 s at p95 (web: 5 s), fail-over to a standby within 3 s. The first lost or
doubled action ends the run; a target that is missed makes the exit code 1.

The counting is that of `tests/faults`: the journal replayed with invariants at every entry, side
effects on disk, rows. Then the trajectories are finished, as trainers do. A part is killed when all
others are back from their own kills and show life again, so that a restart is timed beside the load
and not beside the restart of the part before.
(In `tests/faults` faults meet each other.)
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import urllib.error
from collections import defaultdict
from pathlib import Path
from typing import Protocol

from benchmarks.interruption import end_on_sigterm
from benchmarks.record import store
from tests.faults.audit import Audit
from tests.faults.load import Load
from tests.faults.system import System
from tests.postgres_server import PostgresServer

#: Seconds from the restart of a part until an action is carried out again, at p95.
BACK_SECONDS = 3.0
WEB_BACK_SECONDS = 5.0
FAIL_OVER_SECONDS = 3.0
ROLES = ("leader", "standby", "node", "projector", "web", "redis")


class Stoppable(Protocol):
    """A part of the system, or the database beside it."""

    def kill(self) -> None: ...
    def start(self) -> None: ...


def _part(system: System, role: str) -> Stoppable:
    if role == "postgres":
        assert system.postgres is not None
        return system.postgres
    named = {"leader": system.leader, "standby": system.standby}
    return named[role]() if role in named else system[role]


def _wait_until_running(system: System, count: int) -> None:
    until = time.monotonic() + 600
    while _running(system) < count:
        if time.monotonic() > until:
            raise SystemExit(f"no {count} actions run, as {system.tails()}")
        time.sleep(0.2)


def _running(system: System) -> int:
    """Return how many actions run; 0 while no loop leads that could tell."""
    try:
        return system.running()
    except urllib.error.HTTPError as error:
        if error.code != 503:
            raise
        return 0


def _kill(system: System, role: str) -> tuple[float, float | None]:
    """Return seconds from the restart until service was back, and those of a fail-over."""
    part = _part(system, role)
    part.kill()
    killed = time.monotonic()
    failed_over = None
    if role == "leader":
        system.leader()
        failed_over = time.monotonic() - killed
    part.start()
    return system.wait_until_served(), failed_over


def _play_rounds(
    system: System, audit: Audit, options: argparse.Namespace, deadline: float
) -> tuple[Load, list[tuple[str, float, float | None]]]:
    """Kill every part so many times in the middle of one load, then count all of it."""
    load = Load(trajectories=options.in_flight + 20, actions=10_000, seconds=options.action_seconds)
    load.start(system)
    load.wait_until_in_flight(options.in_flight, 300)
    killed = []
    roles = (*ROLES, "postgres") if system.postgres is not None else ROLES
    for _ in range(options.rounds_per_count):
        for role in roles:
            _wait_until_running(system, int(options.in_flight * 0.95))
            system.wait_until_whole()
            seconds, failed_over = _kill(system, role)
            killed.append((role, seconds, failed_over))
            print(f"{role:10} back after {seconds:5.2f} s", flush=True)
        if time.monotonic() > deadline:
            break
    load.end_early()
    load.join(600)
    audit.check(load)  # ends the run at the first lost or doubled action
    load.finish(system)
    return load, killed


def _p95(values: list[float]) -> float:
    return round(sorted(values)[min(len(values) - 1, int(0.95 * len(values)))], 2)


def missed(rows: dict[str, dict[str, float]], fail_over_seconds: float) -> list[str]:
    """Return the targets that were missed."""
    late = [
        f"{role}: back after {row['back_p95_seconds']:g} s"
        for role, row in rows.items()
        if row["back_p95_seconds"] > (WEB_BACK_SECONDS if role == "web" else BACK_SECONDS)
    ]
    if fail_over_seconds > FAIL_OVER_SECONDS:
        late.append(f"fail-over after {fail_over_seconds:g} s")
    return late


def main() -> int:
    """Measure, print, store; return 1 when a target is missed."""
    end_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50, help="kills of each part")
    parser.add_argument("--rounds-per-count", type=int, default=10, help="between two audits")
    parser.add_argument("--in-flight", type=int, default=1000)
    parser.add_argument("--action-seconds", type=float, default=30.0)
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no round after that")
    parser.add_argument(
        "--postgres", action="store_true", help="PostgreSQL, killed too, for SQLite"
    )
    parser.add_argument(
        "--store", action=argparse.BooleanOptionalAction, default=True, help="keep the result"
    )
    options = parser.parse_args()
    deadline = time.monotonic() + 60 * options.minutes
    back: dict[str, list[float]] = defaultdict(list)
    over: list[float] = []
    accepted = 0
    with tempfile.TemporaryDirectory(prefix="tangram-faults-") as directory:
        postgres = PostgresServer().create() if options.postgres else None
        system = System(Path(directory), cpus=4000, postgres=postgres)
        try:
            system.start()
            audit = Audit(system)
            while len(back["leader"]) < options.rounds and time.monotonic() < deadline:
                load, killed = _play_rounds(system, audit, options, deadline)
                accepted += len(load.accepted)
                for role, seconds, failed_over in killed:
                    back[role].append(seconds)
                    over += [failed_over] if failed_over is not None else []
                print(f"{accepted} accepted so far: none lost, none run twice", flush=True)
        finally:
            system.stop()
            if postgres is not None:
                postgres.stop()
    rows = {
        role: {"rounds": len(v), "back_p95_seconds": _p95(v), "back_max_seconds": round(max(v), 2)}
        for role, v in back.items()
    }
    result = {
        "in_flight": options.in_flight,
        "accepted": accepted,
        "lost": 0,
        "run_twice": 0,
        "rows": rows,
        "fail_over_p95_seconds": _p95(over),
    }
    print(result)
    if options.store:
        print("stored in", store("faults_postgres" if options.postgres else "faults", result))
    late = missed(rows, _p95(over))
    print("missed:" if late else "all targets are met", *late)
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
