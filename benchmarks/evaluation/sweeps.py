"""sweeps: headlines of ARL-Tangram over two parameters each, as maps, with one sentence for each.

For each cell a rival and Tangram's policy ``paper`` are simulated on the calibrated workload. Clusters of cores
are 16 times smaller than the paper's with their limits, GPUs are as many. The whole grid is 6 maps of 25 cells
each; with ``--kept`` it goes on where it was ended before, and ``--small`` takes every second value. All numbers
are simulated, and the same for the same inputs and code.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any, Final

from benchmarks.evaluation.cases import PODS, STANDARD, Case, Inputs, Scale
from benchmarks.evaluation.checkpoint import Kept
from benchmarks.evaluation.commands import CORES, shown
from benchmarks.evaluation.heatmap import heatmap
from benchmarks.evaluation.maps import Axis, RatioMap, conclusion
from benchmarks.evaluation.plans import Context, Measure, act, trajectory_act
from benchmarks.evaluation.runs import Results, simulate
from benchmarks.evaluation.search import effective_step
from benchmarks.record import RESULTS, store
from domain.errors import InvalidRequest
from simulator.llm_trace import make_requests, read_requests
from simulator.options import RECORDINGS, REQUESTS
from simulator.traces import make_recordings, read_recordings
from simulator.worker_processes import end_on_signal
from simulator.workloads.calibrated import CALIBRATIONS

POLICY: Final = "paper"
#: Cores of a node (ARL-Tangram §6.1).
NODE_CORES: Final = 256


@dataclass(frozen=True)
class Knob:
    """An axis, and what of a case its values are."""

    axis: Axis
    #: A declared parameter of the calibrated workload; else a field of the case, or ``pods``.
    parameter: str = ""
    field: str = ""

    def applied(self, case: dict[str, Any], value: float) -> dict[str, Any]:
        """Return the fields of a case with ``value``."""
        if self.parameter:
            return {**case, "calibration": (*case["calibration"], (self.parameter, value))}
        if self.field == "nodes":
            return {**case, "nodes": round(value / NODE_CORES)}
        if self.field == "pods":
            return {**case, "rival": f"kubernetes({value:g} pods)"}
        return {**case, self.field: round(value)}

    def smaller(self) -> Knob:
        """Return it with every second value, the first and the last among them."""
        values = self.axis.values
        kept = tuple(sorted({*values[::2], values[-1]}))
        return replace(self, axis=replace(self.axis, values=kept))


@dataclass(frozen=True)
class Sweep:
    """A headline, and the two knobs that it depends on."""

    id: str
    title: str
    #: What the paper prints.
    paper: float
    workload: str
    batch: int
    rival: str
    measure: Measure
    x: Knob
    y: Knob

    def cases(self, scale: Scale, x: float, y: float) -> tuple[list[Case], list[Case]]:
        """Return the rival's cases of one cell and Tangram's, one for each seed."""
        fields: dict[str, Any] = {"batch": self.batch, "rival": self.rival, "calibration": ()}
        fields = self.y.applied(self.x.applied(fields, x), y)
        rival, batch = fields.pop("rival"), fields.pop("batch")
        fields["workload"] = self.workload
        return scale.case(rival, batch, **fields), scale.case(POLICY, batch, **fields)

    def places(self) -> list[tuple[float, float]]:
        """Return the cells."""
        return [(x, y) for y in self.y.axis.values for x in self.x.axis.values]

    def all_cases(self, scale: Scale) -> list[Case]:
        """Return everything that must be simulated."""
        return [
            case for place in self.places() for side in self.cases(scale, *place) for case in side
        ]

    def map(self, context: Context) -> RatioMap:
        """Return the map, from the results of its cases."""
        cells = {
            place: context.ratio(*self.cases(context.scale, *place), self.measure)
            for place in self.places()
        }
        return RatioMap(self.title, self.paper, self.x.axis, self.y.axis, cells)

    def smaller(self) -> Sweep:
        """Return it on a small grid."""
        return replace(self, x=self.x.smaller(), y=self.y.smaller())


def declared(
    workload: str, name: str, title: str, values: Sequence[float], *, printed: bool
) -> Knob:
    """Return the knob of a declared parameter; ``printed``: its value is named by the print."""
    parameter = CALIBRATIONS[workload].parameter(name)
    value = parameter.value if printed else None
    return Knob(Axis(title, tuple(values), parameter.low, parameter.high, value), parameter=name)


_CODING, _MOPD, _SEARCH = (
    "ai-coding(calibrated)", "mopd(calibrated)", "deep-search(calibrated)",
)  # fmt: skip
_CORES: Final = Knob(Axis("cores", (768, 1280, 1792, 2560, 3840), 768, 3840, 1280), field="nodes")
_BATCH: Final = Knob(Axis("batch", (128, 256, 768, 1280, 1536), 128, 1536, 1280), field="batch")
#: The print names no limit of pods; 110 is the default of Kubernetes, others are chosen by who runs it.
_PODS: Final = Knob(Axis("pods a node", tuple(PODS.values()), 40, 250), field="pods")

SWEEPS: Final = (
    Sweep(
        "coding-rewards", "ACT of AI coding at batch 1,280, kubernetes(110) over paper", 4.3,
        _CODING, 1280, "kubernetes(110)", trajectory_act,
        declared(_CODING, "reward_share", "share of rewards", (0.05, 0.25, 0.5, 0.75, 0.95),
                 printed=False),
        declared(_CODING, "reward_units", "cores of the mean reward", (1, 2, 4, 8, 32),
                 printed=False),
    ),
    Sweep(
        "coding-cores", "ACT of AI coding, kubernetes(110) over paper", 4.3,
        _CODING, 1280, "kubernetes(110)", trajectory_act, _CORES, _BATCH,
    ),
    Sweep(
        "coding-pods", "ACT of AI coding at batch 1,280, kubernetes over paper", 4.3,
        _CODING, 1280, "kubernetes(110)", trajectory_act, _PODS,
        declared(_CODING, "acting_share", "share of acting", (0.1, 0.2, 0.3, 0.47, 0.7), printed=True),
    ),
    Sweep(
        "mopd-arrivals", "ACT of MOPD at batch 2,048, sglang(4) over paper", 18.1,
        _MOPD, 2048, "sglang(4)", act,
        declared(_MOPD, "arrival_seconds", "s of arrivals", (120, 180, 260, 400, 600), printed=True),
        declared(_MOPD, "execution_seconds", "s of a call", (0.05, 0.2, 0.621, 0.705, 2.0, 5.0),
                 printed=True),
    ),
    Sweep(
        "mopd-restores", "ACT of MOPD at batch 1,024, serverlessllm over paper", 101.8,
        _MOPD, 1024, "serverlessllm", act,
        declared(_MOPD, "arrival_seconds", "s of arrivals", (120, 180, 260, 400, 600), printed=True),
        declared(_MOPD, "restored_share", "share of calls restored", (0.1, 0.25, 0.5, 0.75, 1.0),
                 printed=False),
    ),
    Sweep(
        "search-limits", "RL step of DeepSearch, unmanaged over paper, ineffective ones done again",
        1.5, _SEARCH, 2048, "unmanaged", effective_step,
        declared(_SEARCH, "search_limit", "searches at once", (32, 64, 128, 256, 512), printed=False),
        declared(_SEARCH, "token_seconds", "s of a token", (0.005, 0.01, 0.02, 0.035, 0.05),
                 printed=False),
    ),
)  # fmt: skip


def chosen(names: Sequence[str], *, small: bool) -> list[Sweep]:
    """Return these sweeps, all when none is named. Raises InvalidRequest for an unknown name."""
    known = {each.id: each for each in SWEEPS}
    for name in names:
        if name not in known:
            raise InvalidRequest(f"there is no sweep {name!r}; there are {', '.join(known)}")
    wanted = [known[name] for name in names] or list(SWEEPS)
    return [each.smaller() for each in wanted] if small else wanted


def maps(
    sweeps: Iterable[Sweep], inputs: Inputs, scale: Scale, results: Results
) -> dict[str, RatioMap]:
    """Return the map of each sweep, by its id."""
    context = Context(scale, inputs, results)
    return {each.id: each.map(context) for each in sweeps}


def stored(drawn: Mapping[str, RatioMap]) -> dict[str, Any]:
    """Return maps as they are stored, each cell as [x, y, mean, low, high]."""
    return {
        name: {
            "title": each.title,
            "paper": each.paper,
            "conclusion": conclusion(each),
            "x": each.x.title,
            "y": each.y.title,
            "allowed": [[each.x.low, each.x.high], [each.y.low, each.y.high]],
            "cells": [
                [x, y, *(float(f"{value:.4g}") for value in (ratio.mean, ratio.low, ratio.high))]
                for (x, y), ratio in each.cells.items()
            ],
        }
        for name, each in drawn.items()
    }


def main() -> None:
    """Simulate, draw, store."""
    end_on_signal()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, help="recorded coding agents [made up]")
    parser.add_argument("--requests", type=Path, help="recorded LLM requests [made up]")
    parser.add_argument("--sweep", action="append", default=[], help="only this one [all]")
    parser.add_argument("--small", action="store_true", help="every second value")
    parser.add_argument("--seeds", type=int, default=STANDARD.seeds)
    parser.add_argument("--jobs", type=int, default=CORES)
    parser.add_argument("--kept", type=Path, help="what is done already; go on from there")
    parser.add_argument("--dry", action="store_true", help="store nothing")
    options = parser.parse_args()

    began, scale = monotonic(), replace(STANDARD, seeds=options.seeds)
    inputs = Inputs(
        make_recordings(RECORDINGS, 0) if options.trace is None else read_recordings(options.trace),
        make_requests(REQUESTS, 0) if options.requests is None else read_requests(options.requests),
        ", ".join("made up" if path is None else path.name
                  for path in (options.trace, options.requests)),
    )  # fmt: skip
    sweeps = chosen(options.sweep, small=options.small)
    kept = None if options.kept is None else Kept(options.kept, inputs, scale)
    with shown(quiet=False) as progress:
        cases = [case for each in sweeps for case in each.all_cases(scale)]
        results = simulate(cases, inputs, scale, jobs=options.jobs, progress=progress, kept=kept)
    drawn = maps(sweeps, inputs, scale, results)
    for name, each in drawn.items():
        print(f"{name}: {conclusion(each)}")
    if options.dry:
        return
    for name, each in drawn.items():
        (RESULTS / f"sweeps-{name}.svg").write_text(heatmap(each) + "\n")
    about = {
        "simulated": True, "scale": scale.name, "divisor": scale.divisor, "seeds": scale.seeds,
        "input": inputs.source, "jobs": options.jobs, "simulations": len(set(cases)),
        "seconds": round(monotonic() - began),
    }  # fmt: skip
    print("stored in", store("evaluation.sweeps", {**about, "maps": stored(drawn)}))


if __name__ == "__main__":
    main()
