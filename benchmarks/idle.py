"""idle: what the whole stack costs when nothing happens, and what its start costs; in one worker and in several.

Each form is started twice on one home: a first start prepares the database, a second one finds it. Ready is
the first answer 200 of ``/readyz``, polled every 0.05 s; CPU seconds until then are those of all processes, the
ended ones too. Then the stack is left alone, and CPU time, wake-ups and private memory of each process are
counted, and the commands that Redis served.

Targets, together: ≤ 0.5 % of a core, ≤ 300 MB PSS; second start ≤ 3 s.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import psutil
import redis

from benchmarks.process_costs import Costs, cpu_seconds, part_of
from benchmarks.record import store
from benchmarks.stack import Stack, tangram_at
from tangram_web.lib.env import embedded_redis_url

FORMS: Final = {"apart": (), "together": ("--together",)}
#: Jobs and rollout workers start behind the others, and what starting left to do ends.
SETTLE_SECONDS: Final = 15.0


def family(stack: Stack) -> list[psutil.Process]:
    """Return the processes of a stack."""
    root = psutil.Process(stack.process.pid)
    return [root, *root.children(recursive=True)]


def start_cost(stack: Stack, began: float) -> dict[str, float]:
    """Return the seconds since ``began``, and the CPU seconds of all processes, the ended ones too."""
    seconds = time.monotonic() - began
    ended = psutil.Process(stack.process.pid).cpu_times()
    cpu = sum(map(cpu_seconds, family(stack))) + ended.children_user + ended.children_system
    return {"ready_seconds": round(seconds, 2), "cpu_seconds": round(cpu, 2)}


def idle_cost(stack: Stack, seconds: float) -> dict[str, Any]:
    """Return what the processes of a stack cost in a period in which nothing happens."""
    client = redis.Redis.from_url(embedded_redis_url(stack.home / "redis"))
    client.config_resetstat()
    costs = Costs(stack.process.pid)
    time.sleep(seconds)
    cpu, woken = costs.since()
    served = client.info("commandstats").items()
    commands = {
        name.removeprefix("cmdstat_"): round(each["calls"] / seconds, 2) for name, each in served
    }
    memory: Counter[str] = Counter()
    for process in family(stack):
        memory[part_of(process)] += round(process.memory_full_info().pss / 2**20)
    percent = {part: round(100 * spent / seconds, 3) for part, spent in cpu.items()}
    return {
        "percent_of_a_core": percent,
        "total_percent": round(sum(percent.values()), 2),
        "wake_ups_per_second": {part: round(each / seconds, 1) for part, each in woken.items()},
        "redis_commands_per_second": dict(sorted(commands.items(), key=lambda each: -each[1])),
        "redis_commands_in_all": round(sum(commands.values()), 1),
        "pss_mb": dict(memory),
        "pss_mb_in_all": sum(memory.values()),
    }


def measured(options: tuple[str, ...], seconds: float) -> dict[str, Any]:
    """Start a form twice, and measure it after the second start."""
    with tempfile.TemporaryDirectory(prefix="tangram-bench-") as directory:
        began = time.monotonic()
        with tangram_at(Path(directory), *options) as stack:
            first = start_cost(stack, began)
            time.sleep(SETTLE_SECONDS)
        began = time.monotonic()
        with tangram_at(Path(directory), *options) as stack:
            second = start_cost(stack, began)
            time.sleep(SETTLE_SECONDS)
            return {"first_start": first, "second_start": second, **idle_cost(stack, seconds)}


def show(form: str, row: dict[str, Any]) -> None:
    """Print what a form costs."""
    print(f"{form}: first start {row['first_start']}, second {row['second_start']}")
    for part, share in sorted(row["percent_of_a_core"].items(), key=lambda each: -each[1]):
        woken, memory = row["wake_ups_per_second"].get(part, 0), row["pss_mb"].get(part, 0)
        print(f"  {part:12} {share:7.3f} %  {woken:6.1f} wake-ups/s  {memory:4} MB")
    print(
        f"  {'in all':12} {row['total_percent']:7.3f} %  {row['redis_commands_in_all']:6.1f} commands of"
        f" Redis/s  {row['pss_mb_in_all']} MB"
    )
    print("  commands:", row["redis_commands_per_second"], flush=True)


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--form", choices=list(FORMS), help="only this one; stores nothing")
    parser.add_argument("--store", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    rows = {}
    for form in [options.form] if options.form else FORMS:
        rows[form] = measured(FORMS[form], options.seconds)
        show(form, rows[form])
    if options.store and not options.form:
        print("stored in", store("idle", rows))


if __name__ == "__main__":
    main()
