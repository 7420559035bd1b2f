"""idle: what the whole stack costs when nothing happens, process by process.

Target: ≤ 5 % of one core in all.
"""

from __future__ import annotations

import argparse
import time

import psutil

from benchmarks.process_costs import cpu_seconds, part_of
from benchmarks.record import store
from benchmarks.stack import tangram


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    with tangram() as stack:
        time.sleep(10.0)  # what starting left to do
        root = psutil.Process(stack.process.pid)
        family = [root, *root.children(recursive=True)]
        before = {process: cpu_seconds(process) for process in family}
        time.sleep(options.seconds)
        percent = {
            f"{part_of(process)} ({process.pid})": round(
                100 * (cpu_seconds(process) - spent) / options.seconds, 2
            )
            for process, spent in before.items()
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        }
    result = {"percent_of_a_core": percent, "total_percent": round(sum(percent.values()), 2)}
    for name, share in percent.items():
        print(f"{name:28} {share:6.2f} %")
    print(f"{'in all':28} {result['total_percent']:6.2f} %")
    print("stored in", store("idle", result))


if __name__ == "__main__":
    main()
