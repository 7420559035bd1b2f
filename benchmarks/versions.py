"""versions: the control path of this checkout against that of another one, in turn, in one run.

Each round measures both checkouts one after the other: noops of 1 and of 64 clients through a whole
stack, and the CPU time of a simulation under three policies. A result is the median of its rounds,
and the ratio of the medians. The other checkout needs a `.venv` (``./tangram lint`` makes one).
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.record import store

ROOT: Final = Path(__file__).resolve().parents[1]
POLICIES: Final = ("minimum", "paper", "malleable")
#: Runs in the folder of a checkout; both versions have these two modules.
STACK: Final = """
import json, sys
from benchmarks.load import run
from benchmarks.record import quantiles
from benchmarks.stack import tangram
seconds = float(sys.argv[1])
with tangram() as stack:
    run(stack.port, stack.token, 16, 3.0)
    one, many = (run(stack.port, stack.token, clients, seconds) for clients in (1, 64))
print(json.dumps({"one_client_p50_ms": quantiles(one.latencies)["p50_ms"], "actions_per_second": many.rate}))
"""
SIMULATE: Final = """
import resource, subprocess, sys
command = [sys.executable, "-m", "simulator", "run", "--batch", sys.argv[1], "--policy", sys.argv[2], "-q", "--json"]
subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime)
"""


def _measure(checkout: Path, program: str, *arguments: object) -> Any:
    python = checkout / ".venv" / "bin" / "python"
    command = [str(python), "-c", program, *map(str, arguments)]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _row(checkout: Path, seconds: float, batch: int) -> dict[str, float]:
    row: dict[str, float] = _measure(checkout, STACK, seconds)
    for policy in POLICIES:
        row[f"simulate_{policy}_cpu_seconds"] = _measure(checkout, SIMULATE, batch, policy)
    return row


def main() -> None:
    """Measure both in turn, print, store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path, help="folder of the other checkout")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--batch", type=int, default=384)
    parser.add_argument("--commit", default="", help="commit of the other checkout, for the record")
    options = parser.parse_args()
    rounds: dict[str, list[dict[str, float]]] = {"other": [], "this": []}
    for _ in range(options.rounds):
        for name, checkout in (("other", options.other.resolve()), ("this", ROOT)):
            rounds[name].append(_row(checkout, options.seconds, options.batch))
            print(name, rounds[name][-1], flush=True)
    medians = {
        name: {key: round(median(row[key] for row in rows), 3) for key in rows[0]}
        for name, rows in rounds.items()
    }
    ratios = {
        key: round(medians["this"][key] / medians["other"][key], 3) for key in medians["this"]
    }
    print(ratios)
    body = {"other": options.commit, "medians": medians, "this ÷ other": ratios, "rounds": rounds}
    print("stored in", store("versions", body))


if __name__ == "__main__":
    main()
