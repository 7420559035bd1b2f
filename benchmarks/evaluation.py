"""evaluation: the whole of `tangram sim report`, stored, with plots of the main figures.

Target: at the standard scale, three seeds, within about 10 minutes on one core. All numbers but
``wall_seconds`` are simulated, and the same for the same inputs and code.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import msgspec

from benchmarks.record import RESULTS, store
from simulator.llm_trace import make_requests, read_requests
from simulator.report.cases import SCALES, Inputs
from simulator.report.evaluation import Report, chosen, evaluate
from simulator.report.svg import plot
from simulator.scenes import RECORDINGS, REQUESTS
from simulator.traces import make_recordings, read_recordings

#: Figures that are stored as plots as well.
DRAWN: Final = ("8a-left", "8a-right", "8b-left", "8b-right", "9-left", "capacity")


def _inputs(trace: Path | None, requests: Path | None) -> Inputs:
    return Inputs(
        make_recordings(RECORDINGS, 0) if trace is None else read_recordings(trace),
        make_requests(REQUESTS, 0) if requests is None else read_requests(requests),
        ", ".join("made up" if path is None else path.name for path in (trace, requests)),
    )


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
    rest = msgspec.to_builtins(msgspec.structs.replace(report, figures=(), measured=None))
    return dict(_rounded({**rest, "figures": figures}))


def main() -> None:
    """Simulate, draw, store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, help="recorded coding agents [made up]")
    parser.add_argument("--requests", type=Path, help="recorded LLM requests [made up]")
    parser.add_argument("--scale", choices=list(SCALES), default="standard")
    parser.add_argument("--figure", action="append", default=[])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--dry", action="store_true", help="store nothing")
    options = parser.parse_args()

    def tell(done: int, total: int) -> None:
        if not done % 50:
            print(done, "of", total, flush=True)

    began = perf_counter()
    report = evaluate(
        chosen(options.figure), _inputs(options.trace, options.requests), SCALES[options.scale],
        jobs=options.jobs, progress=tell,
    )  # fmt: skip
    body = {**_compact(report), "wall_seconds": round(perf_counter() - began)}
    for figure in report.figures:
        for claim in figure.claims:
            if claim.verdict:
                print(figure.id, claim.what, claim.paper, claim.ours, claim.verdict, sep=" | ")
    if options.dry:
        return
    for figure in report.figures:
        if figure.id in DRAWN:
            (RESULTS / f"evaluation-{figure.id}.svg").write_text(plot(figure) + "\n")
    print("stored in", store("evaluation", body))


if __name__ == "__main__":
    main()
