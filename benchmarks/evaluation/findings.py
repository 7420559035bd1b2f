"""What was found on ARL-Tangram's headlines, from a report or from what is stored: values, maps, pairs of scales, measurements."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import msgspec

from benchmarks.evaluation.cases import SCALES
from benchmarks.evaluation.maps import RatioMap
from benchmarks.evaluation.report import Report
from benchmarks.evaluation.scale_checks import ScalePair
from benchmarks.evaluation.stored_maps import StoredMap, read_map
from benchmarks.record import RESULTS
from simulator.figures import Figure, Interval, Series

#: Stored evaluations that have headlines, the best first.
EVALUATIONS: Final = ("evaluation-full.json", "evaluation-calibrated.json")
MAPS: Final = "evaluation.sweeps.json"
LOADS: Final = "docker_loads.json"
#: What figures of headlines are called, and those of times by RL step.
FAMILY: Final = "headlines-"
STEPS: Final = "steps-"


@dataclass(frozen=True)
class MeasuredLoad:
    """What was measured in containers at one offered load, over runs."""

    #: Overhead over execution.
    share: Interval
    overhead_seconds: float
    execution_seconds: float


@dataclass(frozen=True)
class Findings:
    """Everything that rows of headlines are made from."""

    scale: str
    seeds: int
    input: str
    #: A claim in words → what came out of it.
    values: Mapping[str, Interval]
    #: Sweep → its map.
    maps: Mapping[str, RatioMap] = field(default_factory=dict)
    pairs: tuple[ScalePair, ...] = ()
    #: Offered load, a share of the granted cores → what was measured on the container driver.
    loads: Mapping[float, MeasuredLoad] = field(default_factory=dict)
    #: When the older one of the evaluation and its maps was stored, as RFC 3339; empty for a report of now.
    stored_at: str = ""
    #: p50 and p95 of the time of a trajectory, by RL step.
    plots: tuple[Figure, ...] = ()

    def value(self, measure: str, column: str, policy: str) -> Interval | None:
        """Return a headline on the workload ``column`` under ``policy``; None where it was not simulated."""
        return self.values.get(f"{column}: {measure.format(policy=policy)}")

    @property
    def steps(self) -> int:
        """Number of RL steps that rows of §6.2 and of MOPD are the mean of."""
        return SCALES[self.scale].headline_steps if self.scale in SCALES else 1


def of_report(report: Report, folder: Path = RESULTS) -> Findings:
    """Return the findings of a report; maps that it has not simulated, and measurements, are the stored ones."""
    values = {
        claim.what: claim.ours
        for figure in report.figures
        if figure.id.startswith(FAMILY)
        for claim in figure.claims
    }
    return Findings(
        report.scale, report.seeds, report.input, values,
        _maps(folder) | _read(report.maps), report.pairs, _loads(folder),
        plots=tuple(each for each in report.figures if each.id.startswith(STEPS)),
    )  # fmt: skip


def of_stored(folder: Path = RESULTS) -> Findings:
    """Return the findings of the stored evaluation: that of the full scale where there is one."""
    nothing: dict[str, Any] = {"scale": "", "seeds": 0, "input": "", "figures": {}}
    body = next((found for name in EVALUATIONS if (found := _json(folder / name))), nothing)
    values = {
        claim["what"]: Interval(*claim["simulated"])
        for name, figure in body["figures"].items()
        if name.startswith(FAMILY)
        for claim in figure["claims"]
    }
    pairs = msgspec.convert(body.get("pairs", ()), tuple[ScalePair, ...])
    return Findings(
        body["scale"], body["seeds"], body["input"], values,
        _maps(folder) | _read(body.get("maps", {})), pairs, _loads(folder), _stored_at(body, folder),
        tuple(_plot(name, each) for name, each in body["figures"].items() if name.startswith(STEPS)),
    )  # fmt: skip


def _plot(name: str, body: Mapping[str, Any]) -> Figure:
    series = tuple(
        Series(line, tuple((int(step), Interval(*found)) for step, found in points.items()))
        for line, points in body["series"].items()
    )
    return Figure(
        id=name, title=body["title"], x="RL step", y=body["y"], series=series, log_y=True
    )  # fmt: skip


def _stored_at(body: Mapping[str, Any], folder: Path) -> str:
    """Return when the older one of an evaluation and of its maps was stored."""
    times = [body["measured_at"]] if "measured_at" in body else []
    if not body.get("maps"):
        stored = _json(folder / MAPS)
        times += [
            each.get("stored_at", stored["measured_at"]) for each in stored.get("maps", {}).values()
        ]
    return min(times, default="")


def _json(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def _maps(folder: Path) -> dict[str, RatioMap]:
    return _read(_json(folder / MAPS).get("maps", {}))


def _read(maps: Mapping[str, StoredMap]) -> dict[str, RatioMap]:
    return {name: read_map(each) for name, each in maps.items()}


def _loads(folder: Path) -> dict[float, MeasuredLoad]:
    found = _json(folder / LOADS).get("loads", {})
    return {
        float(load): MeasuredLoad(
            Interval(*each["overhead_over_execution"]),
            fmean(run["overhead_seconds"] for run in each["runs"]),
            fmean(run["execution_seconds"] for run in each["runs"]),
        )
        for load, each in found.items()
    }
