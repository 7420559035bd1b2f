"""makespan: how much shorter is the step under policy ``makespan``, and what does it cost the mean?

Target (virtual time): on crowded clusters a step at least 10 % shorter than under ``malleable``, at a mean ACT
at most 5 % longer. Each row is one load, with ratios over seeds: ``makespan`` without declarations, with the number
of remaining actions declared (exactly, and with an error of sigma 0.5), and `simulator.clairvoyant` as a bound. ``least`` is
the step that no scheduler can beat, over that of ``malleable``. Beside them p95, p99, and the step of ``malleable``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.record import store
from simulator import clairvoyant
from simulator.cluster import Cluster
from simulator.compare import Scene, run
from simulator.result import Result
from simulator.sweep import shortened
from simulator.traces import make_recordings, read_recordings
from simulator.worker_processes import end_on_signal
from simulator.workloads.ai_coding import AiCoding
from simulator.workloads.rewards import PRESETS
from tangram_client.traces.recording import Recording

#: Name → error of the declared number of remaining actions.
DECLARED = {"undeclared": None, "sigma 0.5": 0.5, "exact": 0.0}


@dataclass(frozen=True)
class Load:
    """One row; ``interactions`` are kept of each recording."""

    trajectories_per_core: float
    rewards: str
    interactions: int

    def scene(
        self, recordings: Sequence[Recording], cores: int, seed: int, error: float | None
    ) -> Scene:
        """Return one step on one node."""
        coding = AiCoding(
            shortened(recordings, self.interactions),
            max(1, round(cores * self.trajectories_per_core)),
            rewards=replace(PRESETS[self.rewards], malleable=True),
            seed=seed,
            length_error=error,
        )
        return Scene(coding, Cluster(1, cores), seed=seed)


def row(load: Load, recordings: Sequence[Recording], cores: int, seeds: int) -> dict[str, Any]:
    """Simulate one load; ratios are those of ``malleable``, means over seeds."""
    found: dict[str, list[tuple[float, float]]] = {}
    steps, p99 = [], []
    for seed in range(seeds):
        plain = load.scene(recordings, cores, seed, None)
        base = run(plain, "malleable").result
        steps.append(_step(base))
        p99.append(base.whole.act.p99)
        least = sum(clairvoyant.least_step_seconds(plain.workload, cores)) / sum(base.step_seconds)
        found.setdefault("least", []).append((least, 0.0))
        runs = {
            name: run(load.scene(recordings, cores, seed, error), "makespan").result
            for name, error in DECLARED.items()
        }
        runs["clairvoyant"] = clairvoyant.simulate(plain)
        for name, result in runs.items():
            ratio = _step(result) / _step(base), result.whole.act.mean / base.whole.act.mean
            found.setdefault(name, []).append(ratio)
    return {
        "load": vars(load),
        "step_seconds": round(fmean(steps), 1),
        "p99_act_seconds": round(fmean(p99), 1),
        "step": {name: round(fmean(a for a, _ in each), 3) for name, each in found.items()},
        "mean_act": {
            name: round(fmean(b for _, b in each), 3)
            for name, each in found.items()
            if name != "least"
        },
    }


def _step(result: Result) -> float:
    return fmean(result.step_seconds)


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return the ratios, step first, then mean ACT."""
    names = list(rows[0]["mean_act"])
    shown = Table(title="over malleable, simulated: step / mean ACT", title_justify="left")
    for name in ("a core", "rewards", "kept", "step, s", "p99, s", "least", *names):
        shown.add_column(name, justify="right")
    for each in rows:
        load = each["load"]
        shown.add_row(
            f"{load['trajectories_per_core']:g}", load["rewards"], str(load["interactions"]),
            f"{each['step_seconds']:,.0f}", f"{each['p99_act_seconds']:,.0f}", f"{each['step']['least']:.2f}",
            *(f"{each['step'][name]:.2f} / {each['mean_act'][name]:.2f}" for name in names),
        )  # fmt: skip
    return shown


def main() -> None:
    """Sweep, print, store."""
    end_on_signal()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", nargs="?", type=Path, help="default: made up trajectories")
    parser.add_argument("--cores", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    recordings = (
        make_recordings(116, 0) if options.trace is None else read_recordings(options.trace)
    )
    loads = [Load(each, "medium", 10_000) for each in (1, 2, 4, 8)]
    loads += [Load(each, "heavy", 10_000) for each in (4, 8)]
    loads += [Load(each, "heavy", 20) for each in (0.5, 1, 2, 4)]
    rows = [row(load, recordings, options.cores, options.seeds) for load in loads]
    Console(width=160).print(table(rows))
    print("stored in", store("makespan", {"cores": options.cores, "rows": rows}))


if __name__ == "__main__":
    main()
