"""never_worse: is the default policy ever worse than its rivals, and what does resizing bring?

Targets (virtual time, `simulator.sweep`): in every cell from light to heavy load, short to long
rewards and few to many cores, mean ACT of ``malleable`` ≤ 1.03 × the best of ``minimum``,
``fixed(4)``, ``fixed(16)`` and ``paper``; at heavy load ≤ 0.7 × ``paper``. Cells in which a target
is missed are printed and stored. Policies that the core does not know are left out, and named.

``--gpus``: cells of GPU services in place of those of cores (`simulator.gpu_sweep`): mean ACT of
``malleable`` (as ``balanced``: calls are not resized) ≤ 1.02 × the best of ``minimum``, ``fixed(4)`` and ``fixed(8)``, paired over
seeds. A cell misses the target where the interval of the ratio excludes 1, too.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.record import store
from domain.errors import InvalidRequest
from simulator.compare import check_policies
from simulator.figures import Interval
from simulator.gpu_sweep import RIVALS as GPU_RIVALS
from simulator.gpu_sweep import SEEDS, GpuRow, gpu_cells, gpu_sweep, worse_on_gpus
from simulator.llm_trace import make_requests, read_requests
from simulator.options import REQUESTS, known_recordings
from simulator.sweep import Row, cells, shortened, sweep, worse
from simulator.worker_processes import end_on_signal

WANTED = ("minimum", "fixed(4)", "fixed(16)", "paper", "balanced", "malleable")
RIVALS = ("minimum", "fixed(4)", "fixed(16)", "paper")
HEAVY_LOAD, HEAVY_RATIO = 2.0, 0.7


def _known(policies: tuple[str, ...]) -> list[str]:
    known = []
    for policy in policies:
        try:
            check_policies([policy])
        except InvalidRequest as error:
            print("left out:", error)
        else:
            known.append(policy)
    return known


def _table(rows: list[Row], policies: list[str]) -> Table:
    table = Table(title="mean ACT, simulated seconds", title_justify="left")
    for name in ("nodes × cores", "per core", "rewards", "seed", *policies):
        table.add_column(name, justify="right")
    for row in rows:
        cell, best = row.cell, min(row.act_seconds.values())
        table.add_row(
            f"{cell.nodes} × {cell.cores}",
            f"{cell.trajectories_per_core:g}",
            cell.rewards,
            str(cell.seed),
            *(
                f"[bold]{act:.2f}[/]" if act <= best * 1.001 else f"{act:.2f}"
                for act in row.act_seconds.values()
            ),
        )
    return table


def _missed(rows: list[Row], policy: str, rivals: list[str]) -> list[dict[str, Any]]:
    return [
        {"cell": vars(row.cell), "ratio": round(ratio, 3)}
        for row, ratio in worse(rows, policy, rivals)
    ]


def _heavy(rows: list[Row]) -> list[dict[str, Any]]:
    """Return how ``malleable`` stands to ``paper`` where load is heavy."""
    return [
        {"cell": vars(row.cell), "ratio": round(row.ratio("malleable", ["paper"]), 3)}
        for row in rows
        if row.cell.trajectories_per_core >= HEAVY_LOAD
    ]


def _gpus(trace: Path | None, seeds: int, jobs: int) -> None:
    """Sweep the cells of GPU services, print, store."""
    requests = make_requests(REQUESTS, 0) if trace is None else read_requests(trace)
    policies = _known((*GPU_RIVALS, "paper", "malleable"))
    rows = gpu_sweep(requests, gpu_cells(seeds), policies, jobs=jobs, done=_print_gpus)
    rivals = [policy for policy in GPU_RIVALS if policy in policies]
    verdict = {
        policy: {
            "cells": len(rows),
            "worse": [
                {"cell": vars(row.cell), "ratio": _rounded(ratio)}
                for row, ratio in worse_on_gpus(rows, policy, rivals)
            ],
        }
        for policy in ("malleable",)
        if policy in policies
    }
    table = [
        {
            "cell": vars(row.cell),
            "act_seconds": row.act_seconds,
            "best": row.best(rivals),
            "ratio": {policy: _rounded(row.ratio(policy, rivals)) for policy in policies},
        }
        for row in rows
    ]
    print(verdict)
    print("stored in", store("never_worse", {"verdict": verdict, "rows": table}, "gpus"))


def _print_gpus(row: GpuRow) -> None:
    ratios = {policy: row.ratio(policy, GPU_RIVALS).mean for policy in row.act_seconds}
    print(row.cell, *(f"{policy} {ratio:.3f}" for policy, ratio in ratios.items()), flush=True)


def _rounded(ratio: Interval) -> list[float]:
    """Return mean, low and high end of ``ratio``."""
    return [round(each, 3) for each in (ratio.mean, ratio.low, ratio.high)]


def main() -> None:
    """Sweep, print, store."""
    end_on_signal()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", nargs="?", type=Path, help="default: made up inputs")
    parser.add_argument(
        "--gpus", action="store_true", help="cells of GPU services; requests as TRACE"
    )
    parser.add_argument("--steps", type=int, default=52, help="interactions kept of a recording")
    parser.add_argument("--cores", type=int, default=256, help="largest cluster of the grid")
    parser.add_argument("--seeds", type=int, help="default: 1; 3 on GPUs")
    parser.add_argument("--jobs", type=int, default=1, help="cells simulated at once")
    options = parser.parse_args()
    if options.gpus:
        _gpus(options.trace, options.seeds or SEEDS, options.jobs)
        return
    recordings, _ = known_recordings(options.trace, 0)
    grid = [
        cell
        for cell in cells(seeds=range(options.seeds or 1))
        if cell.nodes * cell.cores <= options.cores
    ]
    policies = _known(WANTED)
    cut = shortened(recordings, options.steps)
    rows = sweep(cut, grid, policies, jobs=options.jobs, done=lambda row: print(row, flush=True))
    Console(width=160).print(_table(rows, policies))
    rivals = [policy for policy in RIVALS if policy in policies]
    verdict: dict[str, Any] = {
        policy: {"cells": len(rows), "worse": _missed(rows, policy, rivals)}
        for policy in ("balanced", "malleable")
        if policy in policies
    }
    if {"malleable", "paper"} <= set(policies):
        verdict["malleable to paper at heavy load"] = _heavy(rows)
    table = [{"cell": vars(row.cell), "act_seconds": row.act_seconds} for row in rows]
    print(verdict)
    print("stored in", store("never_worse", {"verdict": verdict, "rows": table}))


if __name__ == "__main__":
    main()
