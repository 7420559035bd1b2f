"""action_path: CPU, wake-ups and Redis commands of a noop, by process, beside another version.

Each round loads every version once, with one client and with 64, in turns; medians over rounds.
CPU seconds are those of all threads (`/proc/PID/task/*/schedstat`); the load generator is counted apart.
``--against FOLDER``: a checkout of another version, which this interpreter runs.

`benchmarks.action_gate` compares short rounds with a stored reference, as a stage of ``./tangram test``.

Targets, against the version before: CPU of all processes ≤ 0.5 with 64 clients; ≤ 1.5 ms with one.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec
import redis

from benchmarks.load import Load, run
from benchmarks.process_costs import Costs
from benchmarks.record import quantiles, store
from benchmarks.stack import ROOT, Stack, tangram
from tangram_web.lib.env import embedded_redis_url

CLIENTS: Final = (1, 64)
#: Jobs and rollout workers start behind the others.
SETTLE_SECONDS: Final = 8.0
#: Commands that only observe.
OBSERVING: Final = frozenset(
    {"info", "config|resetstat", "auth", "hello", "client|setinfo", "ping"}
)


#: A checkout, and options of ``up``.
Variant = tuple[Path, tuple[str, ...]]
#: Variant and clients → a row for each round.
Rounds = dict[str, list[dict[str, Any]]]


def load_stack(stack: Stack, clients: int, seconds: float) -> dict[str, Any]:
    """Load a stack, and return rate, latencies, and costs of one action."""
    client = redis.Redis.from_url(embedded_redis_url(stack.home / "redis"))
    client.config_resetstat()
    costs, own = Costs(stack.process.pid), time.process_time()
    load: Load = run(stack.port, stack.token, clients, seconds)
    generator = time.process_time() - own
    time.sleep(0.5)  # the projector writes rows behind the answers
    cpu, woken = costs.since()
    actions = len(load.latencies)
    commands = {
        name.removeprefix("cmdstat_"): round(each["calls"] / actions, 3)
        for name, each in client.info("commandstats").items()
        if name.removeprefix("cmdstat_") not in OBSERVING and each["calls"] > actions / 200
    }
    latencies = quantiles(load.latencies)
    return {
        "per_second": round(load.rate, 1),
        **latencies,
        "p99_over_p50": round(latencies["p99_ms"] / latencies["p50_ms"], 2),
        "cpu_us": {part: round(1e6 * spent / actions, 1) for part, spent in sorted(cpu.items())},
        "cpu_us_in_all": round(1e6 * sum(cpu.values()) / actions, 1),
        "generator_us": round(1e6 * generator / actions, 1),
        "wake_ups": {part: round(times / actions, 2) for part, times in sorted(woken.items())},
        "redis_commands": commands,
    }


def _median(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median of each number; of nested tables by key."""
    merged: dict[str, Any] = {}
    for key, first in rounds[0].items():
        if isinstance(first, dict):
            names = sorted({name for each in rounds for name in each[key]})
            merged[key] = {
                name: round(statistics.median(each[key].get(name, 0.0) for each in rounds), 3)
                for name in names
            }
        else:
            merged[key] = round(statistics.median(each[key] for each in rounds), 3)
    return merged


def _print(name: str, row: dict[str, Any]) -> None:
    print(
        f"{name:16} {row['per_second']:8.1f}/s  p50 {row['p50_ms']:7.3f} ms  p99 {row['p99_ms']:7.3f} ms"
        f"  CPU {row['cpu_us_in_all']:7.1f} µs an action: "
        + ", ".join(f"{part} {spent:g}" for part, spent in row["cpu_us"].items())
    )


def calibration_us() -> float:
    """Return the CPU microseconds of a fixed piece of Python on this machine; the least of five runs."""
    encode = msgspec.msgpack.Encoder().encode

    def once() -> float:
        began = time.process_time()
        for number in range(20_000):
            encode({"number": number, "name": f"act_{number:08x}", "list": [number] * 8})
        return 1e6 * (time.process_time() - began) / 20_000

    return round(min(once() for _ in range(5)), 3)


def _measure(variants: Mapping[str, Variant], rounds: int, seconds: float) -> Rounds:
    """Load each variant in turns; return the rows of each with 1 and with 64 clients."""
    measured: Rounds = {}
    with ExitStack() as running:
        stacks = {}
        for name, (root, options) in variants.items():
            environment = {"PYTHONPATH": os.fspath(root)}
            starting = tangram(*options, environment=environment, root=root)
            stacks[name] = running.enter_context(starting)
            run(stacks[name].port, stacks[name].token, 16, 3.0)  # warm
        time.sleep(SETTLE_SECONDS)
        for number in range(rounds):
            turns = list(stacks.items()) if number % 2 == 0 else list(stacks.items())[::-1]
            for clients in CLIENTS:
                for name, stack in turns:
                    row = load_stack(stack, clients, seconds)
                    measured.setdefault(f"{name} x{clients}", []).append(row)
    return measured


def _ratios(rows: Mapping[str, Any]) -> dict[str, float]:
    """Return this version over the one before."""
    return {
        f"{key} x{clients}": round(
            rows[f"this x{clients}"][key] / rows[f"before x{clients}"][key], 3
        )
        for clients in CLIENTS
        for key in ("cpu_us_in_all", "per_second", "p50_ms")
    }


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--against", type=Path, metavar="FOLDER")
    parser.add_argument("--together", action="store_true", help="measure up --together as well")
    options = parser.parse_args()
    variants: dict[str, Variant] = {"this": (ROOT, ())}
    if options.together:
        variants["together"] = (ROOT, ("--together",))
    if options.against:
        variants["before"] = (options.against.resolve(), ())
    unit_us = calibration_us()
    measured = _measure(variants, options.rounds, options.seconds)
    rows = {name: _median(rounds) for name, rounds in sorted(measured.items())}
    for name, row in rows.items():
        _print(name, row)
    ratios = _ratios(rows) if options.against else {}
    print(ratios)
    found = {"calibration_us": unit_us, "rows": rows, "ratios": ratios}
    print("stored in", store("action_path", found))


if __name__ == "__main__":
    main()
