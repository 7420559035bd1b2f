"""Degrees for a batch: exact by need, Algorithm 2, and every division one by one.

Targets: exact for 64 GPUs and 6,400 trajectories ≤ 0.5 s; Algorithm 2 for 256 GPUs and 12,800 trajectories ≤ 2 s and at most 1 %
above the exact cost.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from benchmarks.placement.sections import Found, late, lengths, timed
from placement.arrange import Presorted, SizeTable, size_table
from placement.degrees import anneal, least_seconds
from placement.profiles import ProfiledTimes
from placement.roofline import roofline
from tests.oracles.partitions import least_cost_of_divisions

#: GPUs and trajectories.
SIZES = ((16, 1600), (64, 6400), (128, 6400), (256, 12_800))
SEEDS = 5
#: GPUs up to which every division is tried without being asked to.
ENUMERATED = 64


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this section alone."""
    group = parser.add_argument_group("degrees")
    group.add_argument(
        "--enumerate", action="store_true", help="every division of 128 and 256, too"
    )


def measure(options: argparse.Namespace) -> Found:
    """Measure, print, and return what was found."""
    times = ProfiledTimes(roofline("14b"))
    rows, missed = [], []
    for gpus, count in SIZES:
        generator = np.random.default_rng(options.seed)
        tables = {
            degree: size_table(times, degree, 100 * degree, count, 4096) for degree in times.degrees
        }
        row = _row(gpus, Presorted(lengths(count, generator)), tables, options)
        rows.append(row)
        print(row, flush=True)
        if gpus == 64:
            missed += late("64 GPUs, exact", row["exact_seconds"], 0.5, "s")
        if gpus == 256:
            missed += late("256 GPUs, Algorithm 2", row["annealed_seconds"], 2.0, "s")
            missed += late("256 GPUs, above exact", row["worst_gap"], 0.01, "of the cost")
    return {"rows": rows}, missed


def _row(
    gpus: int, trajectories: Presorted, tables: dict[int, SizeTable], options: argparse.Namespace
) -> dict[str, Any]:
    (degrees, cost), seconds = timed(lambda: least_seconds(trajectories, gpus, tables))
    annealed = [
        timed(lambda seed=seed: anneal(trajectories, gpus, tables, np.random.default_rng(seed)))  # type: ignore[misc]
        for seed in range(SEEDS)
    ]
    row = {
        "gpus": gpus,
        "trajectories": trajectories.count,
        "degrees": {degree: degrees.count(degree) for degree in tables},
        "cost_seconds": round(cost, 3),
        "exact_seconds": round(seconds, 4),
        "annealed_seconds": round(max(took for _, took in annealed), 4),
        "worst_gap": round(max(found[1] for found, _ in annealed) / cost - 1, 5),
    }
    if gpus <= ENUMERATED or options.enumerate:
        (least, every, evaluated), took = timed(
            lambda: least_cost_of_divisions(trajectories, gpus, tables)
        )
        if least != cost:
            raise SystemExit(f"costs differ: {least} of every division, {cost}")
        row |= {"divisions": every, "evaluated": evaluated, "enumerated_seconds": round(took, 3)}
    return row
