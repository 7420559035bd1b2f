"""sweeps: headlines of ARL-Tangram over two parameters each, as maps, with one sentence for each.

For each cell a rival and Tangram's policy ``paper`` are simulated on the calibrated workload. Clusters of cores
are 16 times smaller than the paper's with their limits, GPUs are as many. With ``--kept`` it goes on where it was
ended before, and ``--small`` takes every second value. Sweeps that are not named stay as they are stored. All
numbers are simulated, and the same for the same inputs and code.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.evaluation.cases import STANDARD, Inputs
from benchmarks.evaluation.checkpoint import Kept
from benchmarks.evaluation.commands import CORES, shown
from benchmarks.evaluation.headline_sweeps import chosen, maps
from benchmarks.evaluation.heatmap import heatmap
from benchmarks.evaluation.maps import conclusion
from benchmarks.evaluation.runs import simulate
from benchmarks.evaluation.short_form import update
from benchmarks.evaluation.stored_maps import StoredMap, stored
from benchmarks.record import RESULTS, name_paths, store
from simulator.llm_trace import make_requests, read_requests
from simulator.options import RECORDINGS, REQUESTS
from simulator.traces import make_recordings, read_recordings
from simulator.worker_processes import end_on_signal


def main() -> None:
    """Simulate, draw, store."""
    end_on_signal()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, help="recorded coding agents [made up]")
    parser.add_argument("--requests", type=Path, help="recorded LLM requests [made up]")
    parser.add_argument("--sweep", action="append", default=[], help="only this one [all]")
    parser.add_argument("--small", action="store_true", help="every second value")
    parser.add_argument("--seeds", type=int, default=STANDARD.seeds)
    parser.add_argument("--jobs", type=int, default=CORES)
    parser.add_argument("--kept", type=Path, help="what is done already; go on from there")
    parser.add_argument("--dry", action="store_true", help="store nothing")
    options = parser.parse_args()
    name_paths()

    began, scale = monotonic(), replace(STANDARD, seeds=options.seeds)
    inputs = Inputs(
        make_recordings(RECORDINGS, 0) if options.trace is None else read_recordings(options.trace),
        make_requests(REQUESTS, 0) if options.requests is None else read_requests(options.requests),
        ", ".join("made up" if path is None else path.name
                  for path in (options.trace, options.requests)),
    )  # fmt: skip
    sweeps = chosen(options.sweep, small=options.small)
    kept = None if options.kept is None else Kept(options.kept, inputs, scale)
    with shown(quiet=False) as progress:
        cases = [case for each in sweeps for case in each.all_cases(scale)]
        results = simulate(cases, inputs, scale, jobs=options.jobs, progress=progress, kept=kept)
    drawn = maps(sweeps, inputs, scale, results)
    for name, each in drawn.items():
        print(f"{name}: {conclusion(each)}")
    if options.dry:
        return
    for name, each in drawn.items():
        (RESULTS / f"sweeps-{name}.svg").write_text(heatmap(each) + "\n")
    about = {
        "simulated": True, "scale": scale.name, "divisor": scale.divisor, "seeds": scale.seeds,
        "input": inputs.source, "jobs": options.jobs, "simulations": len(set(cases)),
        "seconds": round(monotonic() - began),
    }  # fmt: skip
    path = store("evaluation.sweeps", {**about, "maps": merged(_before(), stored(drawn))})
    print("stored in", path)
    update()


def merged(before: dict[str, Any], maps: dict[str, StoredMap]) -> dict[str, StoredMap]:
    """Return the maps of now and, of sweeps that are not among them, those of ``before``, each with its time."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    known = {
        name: {"stored_at": before["measured_at"]} | each
        for name, each in before.get("maps", {}).items()
    }
    return known | {name: {**each, "stored_at": now} for name, each in maps.items()}


def _before() -> dict[str, Any]:
    path = RESULTS / "evaluation.sweeps.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


if __name__ == "__main__":
    main()
