"""One arrangement of a batch beside formula 3 in numpy as printed, and how often the mapping's order is not the best.

Target: 6,400 trajectories on 16 workers, with the sort, p99 ≤ 4 ms.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np

from benchmarks.placement.sections import Found, late, lengths, timed
from benchmarks.record import quantiles
from placement.arrange import SizeTable, arrange, by_degree, formula_three, size_table, size_tables
from placement.estimates import Work, assignment_seconds
from placement.facts import WorkerFacts
from placement.profiles import ProfiledTimes
from placement.roofline import roofline

TRAJECTORIES, P99_MS = 6400, 4.0
#: Degrees of 16 workers of one kind and of three.
FLEETS = {"alike": (1,) * 16, "unlike": (8,) * 2 + (4,) * 4 + (1,) * 10}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this section alone."""
    group = parser.add_argument_group("arrange")
    group.add_argument("--rounds", type=int, default=300)
    group.add_argument(
        "--cases", type=int, default=600, help="small ones, for the order of workers"
    )


def measure(options: argparse.Namespace) -> Found:
    """Measure, print, and return what was found."""
    generator = np.random.default_rng(options.seed)
    found: dict[str, Any] = {"trajectories": TRAJECTORIES, "workers": 16}
    missed = []
    for name, degrees in FLEETS.items():
        row = _fleet(_workers(degrees), options.rounds, generator)
        found[name] = row
        missed += late(f"{name} p99", row["arrange"]["p99_ms"], P99_MS, "ms")
        print(name, row, flush=True)
    found["order_of_workers"] = _orders(options.cases, generator)
    print("order of workers", found["order_of_workers"], flush=True)
    return found, missed


def _workers(degrees: tuple[int, ...]) -> list[WorkerFacts]:
    facts = (
        WorkerFacts(number, slots=100 * degree, degree=degree)
        for number, degree in enumerate(degrees, start=1)
    )
    return by_degree(facts)


def _fleet(
    workers: list[WorkerFacts], rounds: int, generator: np.random.Generator
) -> dict[str, Any]:
    times = ProfiledTimes(roofline("14b"))
    tables, made = timed(lambda: size_tables(times, workers, TRAJECTORIES, 4096))
    batches = [lengths(TRAJECTORIES, generator) for _ in range(rounds)]
    row = {
        "tables_ms": round(made * 1e3, 2),
        "arrange": _quantiles(lambda batch: arrange(batch, tables), batches),
        # Contexts as long as the answers: caches wait for room.
        "arrange_with_contexts": _quantiles(
            lambda batch: arrange(batch, tables, batch), batches[: rounds // 10 + 1]
        ),
        "estimate": _quantiles(
            lambda batch: _estimated(batch, workers, times), batches[: rounds // 10 + 1]
        ),
    }
    printed, seconds = timed(lambda: formula_three(batches[0], tables))
    ours = arrange(batches[0], tables).seconds
    if ours > printed.seconds:
        raise SystemExit(f"formula 3 is better: {printed.seconds} s, arrange {ours} s")
    row["formula_three_ms"] = round(seconds * 1e3)
    row["cost_seconds"] = {"arrange": round(ours, 3), "formula_three": round(printed.seconds, 3)}
    return row


def _estimated(batch: list[float], workers: list[WorkerFacts], times: ProfiledTimes) -> float:
    """Estimate a batch that is dealt out in turn, with predictions that are wrong."""
    work = Work(batch, [10.0] * len(batch), [0.0] * len(batch))
    assigned = [number % len(workers) for number in range(len(batch))]
    return assignment_seconds(times, workers, assigned, work, sigma=0.5)


def _quantiles(
    call: Callable[[list[float]], object], batches: list[list[float]]
) -> dict[str, float]:
    call(batches[0])  # warm
    return quantiles([timed(lambda batch=batch: call(batch))[1] for batch in batches])  # type: ignore[misc]


def _orders(cases: int, generator: np.random.Generator) -> dict[str, dict[str, float]]:
    """Compare the order of descending degree with every order, on two to seven trajectories and two or three workers."""
    found = {}
    for name, drawn in (("modelled", _modelled), ("any that rise", _rising)):
        worse, most = 0, 1.0
        for _ in range(cases):
            count, workers = int(generator.integers(2, 8)), int(generator.integers(2, 4))
            some = generator.lognormal(0, 1, count).tolist()
            tables = drawn(count, workers, generator)
            mapped = arrange(some, tables).seconds
            best = min(arrange(some, order).seconds for order in permutations(tables))
            worse += mapped > best
            most = max(most, mapped / best)
        found[name] = {"cases": cases, "not_the_best": worse, "worst_ratio": round(most, 4)}
    return found


def _modelled(count: int, workers: int, generator: np.random.Generator) -> list[SizeTable]:
    """Return tables of modelled workers of random degrees with few slots."""
    times = ProfiledTimes(roofline("14b"))
    degrees = sorted(generator.choice(times.degrees, workers).tolist(), reverse=True)
    return [size_table(times, degree, 2 * degree, count, 4096) for degree in degrees]


def _rising(count: int, workers: int, generator: np.random.Generator) -> list[SizeTable]:
    """Return tables of any form, each nowhere slower than the next."""
    seconds = [generator.uniform(0.5, 1) + np.cumsum(generator.exponential(0.3, count))]
    for _ in range(workers - 1):
        seconds.append(np.maximum.accumulate(seconds[-1] * generator.uniform(0.4, 1, count)))
    return [SizeTable(each) for each in reversed(seconds)]
