"""fleets: Heddle's mechanisms against plain rivals, in virtual time; and the modelled engine over HTTP beside its simulation.

    python -m benchmarks.fleets --trace PATH                 all sections, 3 seeds; about an hour on two idle cores
    python -m benchmarks.fleets --only order --seeds 1       one of them
    python -m benchmarks.fleets --only http                  about 5 minutes, in real time

Sections: order (priority on one wide worker), arrange (placement on equal workers), fold (the headline, against the rivals' grid),
never_worse (ours where something binds or is wrong), http (fakes over HTTP beside the simulation). All numbers but those of ``http``
are simulated. Each section stores its part of ``results/fleets.json``.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.fleets import http_fleets
from benchmarks.fleets.cases import Compared, simulate_fleets
from benchmarks.fleets.sections import SECTIONS, Row
from benchmarks.record import store_parts
from simulator.options import known_recordings
from simulator.worker_processes import end_on_signal
from tangram_client.traces.recording import Recording


def _row(row: Row) -> dict[str, Any]:
    found = row.found
    return {
        "times_shorter": [round(each, 3) for each in (found.mean, found.low, found.high)],
        **({} if row.goal is None else {"goal": row.goal, "reached": not row.missed}),
    }


def _simulated(
    name: str, recordings: list[Recording], options: argparse.Namespace
) -> tuple[dict[str, Any], list[str]]:
    section = SECTIONS[name]()
    began = perf_counter()
    cases = [case for each in section.cases for case in each.seeds(options.seeds)]
    results = simulate_fleets(cases, recordings, jobs=options.jobs)
    compared = Compared(results, options.seeds)
    rows = section.rows(compared)
    for row in rows:
        print(f"{row.name:48} {row.found}{'' if row.goal is None else f'  goal {row.goal}'}")
    found = {
        "simulated": True,
        "seeds": options.seeds,
        "trace": "made up" if options.trace is None else options.trace.name,
        "simulations": len(results),
        "seconds": round(perf_counter() - began),
        "rows": {row.name: _row(row) for row in rows},
        "makespans": {case.label: round(compared.makespan(case).mean, 1) for case in section.cases},
    }
    return found, [f"{row.name}: {row.found}, goal {row.goal}" for row in rows if row.missed]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [*SECTIONS, "http"]
    parser.add_argument("--only", choices=names, action="append", help="default: all")
    parser.add_argument("--trace", type=Path, help="recorded coding agents [made up]")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--store", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument(
        "--speed", type=float, default=2.5, help="http: virtual seconds in a real one"
    )
    parser.add_argument(
        "--shared", action="store_true", help="http: note that other work ran on the machine"
    )
    parser.add_argument("--trajectories", type=int, default=64, help="http: of its batch")
    options = parser.parse_args()
    if options.seeds < 1 or options.jobs < 1:
        parser.error("--seeds and --jobs are at least 1")
    options.only = options.only or names
    return options


def main() -> int:
    """Simulate, print, store; return 1 when a goal is missed."""
    end_on_signal()
    options = _options()
    trace = options.trace
    recordings, _ = known_recordings(trace, 0)
    late: list[str] = []
    for name in options.only:
        print(f"-- {name}", flush=True)
        if name == "http":
            found = http_fleets.measure(
                recordings, options.trajectories, options.speed, shared=options.shared
            )
            missed = http_fleets.missed(found)
            print(found)
        else:
            found, missed = _simulated(name, recordings, options)
        late += [f"{name}: {each}" for each in missed]
        if options.store:
            print("stored in", store_parts("fleets", {name: found}), flush=True)
    print("missed:" if late else "all goals are reached", *late, sep="\n  ")
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
