"""faults: each part is killed again and again under load; what is lost, run twice, and how long.

Targets: 50 rounds of each kill with 1,000 declared-core actions in flight: nothing lost, nothing
run twice, service back within 5 s at p95, fail-over to a standby within 3 s.

The counting is that of `tests/faults`: the journal replayed with invariants at every entry, side
effects on disk, rows.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from benchmarks.record import store
from tests.faults.audit import Audit
from tests.faults.load import Load
from tests.faults.system import Part, System

ROLES = ("leader", "standby", "node", "projector", "web", "redis")


def _part(system: System, role: str) -> Part:
    named = {"leader": system.leader, "standby": system.standby}
    return named[role]() if role in named else system[role]


def _round(system: System, role: str, in_flight: int) -> tuple[Load, float, float | None]:
    """Return the round, seconds until service was back, and those of the fail-over if there was."""
    # They last longer than starting all of them takes, so that the kill meets them running.
    load = Load(trajectories=in_flight + 20, actions=1, seconds=5 + in_flight / 25)
    load.start(system)
    load.wait_until_in_flight(in_flight, 300)
    while system.running() < in_flight * 0.9:
        time.sleep(0.2)
    part = _part(system, role)
    part.kill()
    killed = time.monotonic()
    failed_over = None
    if role == "leader":
        system.leader()
        failed_over = time.monotonic() - killed
    part.start()
    back = system.wait_until_served()
    load.join(600)
    return load, back, failed_over


def _p95(values: list[float]) -> float:
    return round(sorted(values)[min(len(values) - 1, int(0.95 * len(values)))], 2)


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--in-flight", type=int, default=1000)
    options = parser.parse_args()
    back: dict[str, list[float]] = defaultdict(list)
    over: list[float] = []
    accepted = 0
    with tempfile.TemporaryDirectory(prefix="tangram-faults-") as directory:
        system = System(Path(directory), cpus=4000)
        system.start()
        try:
            audit = Audit(system)
            for number in range(options.rounds):
                for role in ROLES:
                    load, seconds, failed_over = _round(system, role, options.in_flight)
                    audit.check(load)  # ends the run at the first lost or doubled action
                    accepted += len(load.accepted)
                    back[role].append(seconds)
                    if failed_over is not None:
                        over.append(failed_over)
                    print(f"round {number + 1} {role:10} back after {seconds:5.2f} s", flush=True)
        finally:
            system.stop()
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
    print("stored in", store("faults", result))


if __name__ == "__main__":
    main()
