"""never_worse: is the default policy ever worse than its rivals, and what does resizing bring?

Targets (virtual time, `simulator.sweep`): in every cell from light to heavy load, short to long
rewards and few to many cores, mean ACT of ``malleable`` ≤ 1.03 × the best of ``minimum``,
``fixed(4)``, ``fixed(16)`` and ``paper``; at heavy load ≤ 0.7 × ``paper``. Cells in which a target
is missed are printed and stored. Policies that the core does not know are left out, and named.
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
from simulator.options import known_recordings
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


def main() -> None:
    """Sweep, print, store."""
    end_on_signal()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", nargs="?", type=Path, help="default: made up trajectories")
    parser.add_argument("--steps", type=int, default=52, help="interactions kept of a recording")
    parser.add_argument("--cores", type=int, default=256, help="largest cluster of the grid")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="cells simulated at once")
    options = parser.parse_args()
    recordings, _ = known_recordings(options.trace, 0)
    grid = [
        cell
        for cell in cells(seeds=range(options.seeds))
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
