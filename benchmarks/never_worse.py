"""never_worse: is the default policy ever worse than its rivals, and how near does it come to what is possible?

Targets (virtual time, `simulator.sweep`): in every cell from light to heavy load, short to long
rewards and few to many cores, mean ACT of ``malleable`` ≤ 1.02 × the best of ``minimum``,
``fixed(4)``, ``fixed(16)`` and ``paper``, paired over three seeds; a cell misses the target where the 95 % interval of the ratio
excludes 1, too. At heavy load ≤ 0.7 × ``paper``. Cells in which a target
is missed are printed and stored. Policies that the core does not know are left out, and named.

``--gpus``: cells of GPU services in place of those of cores (`simulator.gpu_sweep`), with the rivals ``minimum``, ``fixed(4)`` and
``fixed(8)`` (``malleable`` decides as ``balanced``: calls are not resized). *malleable, learned*: calls declare no duration.

Beside the policies: ``no waiting``, a bound for every policy, and ``srpt``, a clairvoyant reference (`simulator.bounds`). The share of
a policy is what it saves over ``minimum``, as a part of what ``srpt`` saves; *best static*: the best rival.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.record import store
from domain.errors import InvalidRequest
from simulator.bounds import NO_WAITING, SRPT
from simulator.compare import check_policies
from simulator.figures import Interval
from simulator.gpu_sweep import LEARNED, GpuCell, GpuRow, gpu_cells, gpu_sweep
from simulator.gpu_sweep import RIVALS as GPU_RIVALS
from simulator.llm_trace import make_requests, read_requests
from simulator.options import REQUESTS, known_recordings
from simulator.paired import SEEDS, PairedRow, above, worse
from simulator.sweep import Cell, cells, paired, shortened, sweep
from simulator.worker_processes import end_on_signal

#: The policy that must not be worse.
JUDGED: Final = "malleable"
COLUMNS: Final = (NO_WAITING, SRPT)
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


def _table(rows: Sequence[PairedRow[Any]], rivals: Sequence[str], policies: list[str]) -> Table:
    """Return mean ACTs over seeds, bounds, and the share of the possible of ``malleable`` and the best rival."""
    table = Table(title="mean ACT, simulated seconds", title_justify="left")
    for name in ("cell", *policies, *COLUMNS, "share", "best static", "its share"):
        table.add_column(name, justify="right")
    for row in rows:
        acts = {policy: mean(row.act_seconds[policy]) for policy in policies}
        least, static = min(acts.values()), row.best(rivals)
        table.add_row(
            _name(row.cell),
            *(
                f"[bold]{act:.2f}[/]" if act <= least * 1.001 else f"{act:.2f}"
                for act in acts.values()
            ),
            *(f"{mean(row.bounds[name]):.2f}" for name in COLUMNS),
            _percent(row.share(JUDGED, SRPT)) if JUDGED in acts else "",
            static,
            _percent(row.share(static, SRPT)),
        )
    return table


def _name(cell: Cell | GpuCell) -> str:
    if isinstance(cell, GpuCell):
        return f"{cell.gpus} GPUs, {cell.call_seconds:g} s, {cell.load:g}"
    return f"{cell.nodes} × {cell.cores}, {cell.trajectories_per_core:g}, {cell.rewards}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _verdict(
    rows: Sequence[PairedRow[Any]], judged: Sequence[str], rivals: Sequence[str]
) -> dict[str, Any]:
    """Return for each judged policy the cells in which it is worse, and those above the limit in the mean."""
    return {
        policy: {"cells": len(rows)}
        | {
            name: [
                {"cell": vars(row.cell), "ratio": _rounded(ratio)}
                for row, ratio in find(rows, policy, rivals)
            ]
            for name, find in (("worse", worse), ("above the limit", above))
        }
        for policy in judged
    }


def _stored(rows: Sequence[PairedRow[Any]], rivals: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {
            "cell": vars(row.cell),
            "act_seconds": row.act_seconds,
            "bounds": row.bounds,
            "best": row.best(rivals),
            "ratio": {each: _rounded(row.ratio(each, rivals)) for each in row.act_seconds},
            "share": {each: _share(row.share(each, SRPT)) for each in row.act_seconds},
        }
        for row in rows
    ]


def _share(share: float | None) -> float | None:
    return None if share is None else round(share, 3)


def _heavy(rows: Sequence[PairedRow[Cell]]) -> list[dict[str, Any]]:
    """Return how ``malleable`` stands to ``paper`` where load is heavy."""
    return [
        {"cell": vars(row.cell), "ratio": _rounded(row.ratio(JUDGED, ["paper"]))}
        for row in rows
        if row.cell.trajectories_per_core >= HEAVY_LOAD
    ]


def _gpus(trace: Path | None, seeds: int, jobs: int) -> None:
    """Sweep the cells of GPU services, print, store."""
    requests = make_requests(REQUESTS, 0) if trace is None else read_requests(trace)
    policies = _known((*GPU_RIVALS, "paper", JUDGED))
    rows = gpu_sweep(requests, gpu_cells(seeds), policies, jobs=jobs, done=_print_gpus)
    judged = [each for each in (JUDGED, LEARNED) if each in rows[0].act_seconds]
    rivals = [policy for policy in GPU_RIVALS if policy in policies]
    Console(width=200).print(_table(rows, rivals, [*policies, *judged[1:]]))
    verdict = _verdict(rows, judged, rivals)
    print(verdict)
    result = {"verdict": verdict, "rows": _stored(rows, rivals)}
    print("stored in", store("never_worse", result, "gpus"))


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
    parser.add_argument("--seeds", type=int, default=SEEDS, help="of each cell")
    parser.add_argument("--jobs", type=int, default=1, help="cells simulated at once")
    options = parser.parse_args()
    if options.gpus:
        _gpus(options.trace, options.seeds, options.jobs)
        return
    recordings, _ = known_recordings(options.trace, 0)
    grid = [
        cell
        for cell in cells(seeds=range(options.seeds))
        if cell.nodes * cell.cores <= options.cores
    ]
    policies = _known(WANTED)
    cut = shortened(recordings, options.steps)
    single = sweep(cut, grid, policies, jobs=options.jobs, done=lambda row: print(row, flush=True))
    rows, rivals = paired(single), [policy for policy in RIVALS if policy in policies]
    Console(width=200).print(_table(rows, rivals, policies))
    judged = [policy for policy in ("balanced", JUDGED) if policy in policies]
    verdict = _verdict(rows, judged, rivals)
    if {JUDGED, "paper"} <= set(policies):
        verdict["malleable to paper at heavy load"] = _heavy(rows)
    print(verdict)
    result = {"verdict": verdict, "rows": _stored(rows, rivals)}
    print("stored in", store("never_worse", result))


if __name__ == "__main__":
    main()
