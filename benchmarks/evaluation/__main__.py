"""evaluation: the whole of `tangram sim report`, stored, with plots of the main figures.

Target: at the standard scale, three seeds, within about 10 minutes on one core. All numbers but
the seconds of each part are simulated, and the same for the same inputs and code. With ``--kept``
it goes on where it was ended before.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.evaluation.cases import SCALES, Case
from benchmarks.evaluation.commands import (
    CORES,
    kept_of,
    say_estimate,
    shown,
    stored_measurement,
)
from benchmarks.evaluation.inputs import read_inputs
from benchmarks.evaluation.report import Report, content, evaluate
from benchmarks.evaluation.short_form import update
from benchmarks.record import RESULTS, name_paths, store
from simulator.compare import Timed
from simulator.figures import plot
from simulator.worker_processes import end_on_signal

#: Figures that are stored as plots as well.
DRAWN: Final = ("8a-left", "8a-right", "8b-left", "8b-right", "9-left", "capacity")


def _rounded(value: Any) -> Any:
    """Return ``value`` with four digits of every number."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return value


def _compact(report: Report) -> dict[str, Any]:
    """Return what came out, each interval as [mean, low, high]."""

    def three(value: Any) -> list[float]:
        return [value.mean, value.low, value.high]

    figures = {
        figure.id: {
            "title": figure.title,
            "y": figure.y,
            "series": {
                series.name: {str(x): three(value) for x, value in series.points}
                for series in figure.series
            },
            "claims": [
                {"what": each.what, "paper": each.paper, "simulated": three(each.ours),
                 "verdict": each.verdict, "note": each.note}
                for each in figure.claims
            ],
        }
        for figure in report.figures
    }  # fmt: skip
    rest = msgspec.to_builtins(msgspec.structs.replace(report, figures=()))
    return dict(_rounded({**rest, "figures": figures}))


class Parts:
    """Duration of each part: the simulations of one workload under one policy."""

    def __init__(self) -> None:
        self._found: defaultdict[tuple[str, str], list[Timed]] = defaultdict(list)

    def add(self, case: Case, timed: Timed) -> None:
        """Count one simulation."""
        self._found[case.workload, case.policy].append(timed)

    def table(self) -> dict[str, dict[str, int]]:
        """Return each part, and all of them together. Seconds are of all processes."""
        every = [timed for part in self._found.values() for timed in part]
        named = {f"{name} {policy}": part for (name, policy), part in sorted(self._found.items())}
        return {name: _summed(part) for name, part in (*named.items(), ("all", every))}


def _summed(part: Sequence[Timed]) -> dict[str, int]:
    seconds = sum(timed.wall_seconds for timed in part)
    actions = sum(timed.result.whole.actions for timed in part)
    return {
        "simulations": len(part),
        "actions": actions,
        "seconds": round(seconds),
        "actions_per_second": round(actions / seconds),
    }


def main() -> None:
    """Simulate, draw, store."""
    end_on_signal()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, help="recorded coding agents [made up]")
    parser.add_argument("--requests", type=Path, help="recorded LLM requests [made up]")
    parser.add_argument("--scale", choices=list(SCALES), default="standard")
    parser.add_argument("--figure", action="append", default=[])
    parser.add_argument("--jobs", type=int, default=CORES)
    parser.add_argument("--kept", type=Path, help="what is done already; go on from there")
    parser.add_argument("--part", default="", help="store under this name: some figures alone")
    parser.add_argument("--dry", action="store_true", help="store nothing")
    options = parser.parse_args()
    name_paths()

    (inputs, _), scale = read_inputs(options.trace, options.requests), SCALES[options.scale]
    wanted = content(scale, options.figure)
    kept = {} if options.kept is None else kept_of(options.kept, inputs, wanted)
    parts = Parts()
    with shown(quiet=False) as progress:
        report = evaluate(
            wanted, inputs, jobs=options.jobs, progress=progress, measured=stored_measurement(),
            kept=kept, watch=parts.add, planned=say_estimate(options.jobs),
        )  # fmt: skip
    body = {**_compact(report), "jobs": options.jobs, "parts": parts.table()}
    for figure in report.figures:
        for claim in figure.claims:
            if claim.verdict:
                print(figure.id, claim.what, claim.paper, claim.ours, claim.verdict, sep=" | ")
    if options.dry:
        return
    name = "evaluation" if options.scale == "standard" else f"evaluation-{options.scale}"
    stem = "-".join(filter(None, (name, options.part))) + "-"
    for figure in report.figures:
        if figure.id in DRAWN:
            (RESULTS / f"{stem}{figure.id}.svg").write_text(plot(figure) + "\n")
    print("stored in", store(name, body, options.part, module="evaluation"))
    update()


if __name__ == "__main__":
    main()
