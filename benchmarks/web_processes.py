"""web_processes: actions a second of one and of two web processes, and a model for more cores.

A stack is started with `up --webs N` for each N and loaded with noops over 64 connections. A noop costs CPU of
the web processes, of all others (``rest``: loop, projector, Redis, nodes, jobs), and of the load generator. The model
has three bounds, and the least of them is the rate:

    cores / (web(n) + rest + generator)   all of them share the cores
    n / web(n)                            a web process is one thread
    1 / single                            there is one loop, one projector, one Redis

each in CPU microseconds of one action, as measured with one web process, times the share of the bound that the stack
reached there (waits, wake-ups, and what else the machine runs). Each further process reads the whole journal:
web(n) = web + (n - 1) · follow, where ``follow`` is the cost of the rollout worker, which does that and nothing else. The
model is checked on what was measured with more processes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

from benchmarks.load import Load, run
from benchmarks.process_costs import Costs
from benchmarks.record import quantiles, store
from benchmarks.stack import Stack, tangram

CLIENTS: Final = 64
#: Jobs and rollout workers start behind the others.
SETTLE_SECONDS: Final = 8.0
#: Predicted for these: (cores, web processes).
PREDICTED: Final = ((2, 1), (2, 2), (4, 1), (4, 2), (4, 3), (8, 2), (8, 4), (8, 6))


class ActionCosts(NamedTuple):
    """CPU microseconds of one action."""

    web: float
    rest: float
    generator: float
    #: The largest of the parts that exist once: loop, projector, Redis.
    single: float
    #: Of a process that reads the journal, and takes nothing from it.
    follow: float

    def of_webs(self, webs: int) -> float:
        """Return what ``webs`` processes take together."""
        return self.web + (webs - 1) * self.follow


def predicted_rate(costs: ActionCosts, cores: int, webs: int, used: float = 1.0) -> float:
    """Return actions a second; ``used``: share of each bound that a stack reaches."""
    web = costs.of_webs(webs)
    shared = cores / (web + costs.rest + costs.generator)
    return used * 1e6 * min(shared, webs / web, 1 / costs.single)


def _measured(stack: Stack, seconds: float) -> dict[str, Any]:
    costs, own = Costs(stack.process.pid), time.process_time()
    load: Load = run(stack.port, stack.token, CLIENTS, seconds)
    generator = time.process_time() - own
    time.sleep(0.5)  # the projector writes rows behind the answers
    cpu, _ = costs.since()
    actions = len(load.latencies)
    us = {part: 1e6 * spent / actions for part, spent in cpu.items()}
    singles = ("loop", "projector", "redis")
    return {
        "per_second": round(load.rate, 1),
        **quantiles(load.latencies),
        "web": round(us["web"], 1),
        "rest": round(sum(us.values()) - us["web"], 1),
        "generator": round(1e6 * generator / actions, 1),
        "single": round(max(us[part] for part in singles if part in us), 1),
        "follow": round(us.get("rollout", 0.0), 1),
    }


def _rows(webs: list[int], rounds: int, seconds: float) -> dict[int, dict[str, Any]]:
    """Return the medians of each number of web processes, loaded in turns."""
    found: dict[int, list[dict[str, Any]]] = {count: [] for count in webs}
    with ExitStack() as running:
        stacks = {n: running.enter_context(tangram("--webs", str(n))) for n in webs}
        for stack in stacks.values():
            run(stack.port, stack.token, 16, 3.0)  # warm
        time.sleep(SETTLE_SECONDS)
        for number in range(rounds):
            for count in webs if number % 2 == 0 else webs[::-1]:
                found[count].append(_measured(stacks[count], seconds))
    return {
        count: {key: round(statistics.median(each[key] for each in rows), 3) for key in rows[0]}
        for count, rows in found.items()
    }


def main() -> int:
    """Measure, check the model on what was measured, predict, print and store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--webs", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    rows = _rows(options.webs, options.rounds, options.seconds)
    first = options.webs[0]
    costs = ActionCosts(*(rows[first][name] for name in ActionCosts._fields))
    used = rows[first]["per_second"] / predicted_rate(costs, cores, first)
    for count, row in rows.items():
        row["model_per_second"] = round(predicted_rate(costs, cores, count, used), 1)
        row["model_web"] = round(costs.of_webs(count), 1)
        row["model_over_measured"] = round(row["model_per_second"] / row["per_second"], 3)
        print(f"{count} web, {cores} cores: {row}")
    table = {
        f"{have} cores, {count} web": round(predicted_rate(costs, have, count, used), 1)
        for have, count in PREDICTED
    }
    print(f"share of the bound that is reached: {used:.2f}; predicted: {table}")
    found = {"cores": cores, "costs_us": costs._asdict(), "used": round(used, 3)}
    print("stored in", store("web_processes", {**found, "rows": rows, "predicted": table}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
