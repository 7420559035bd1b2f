"""A slice of the evaluation against stored ranges, so that no change moves it unseen."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from benchmarks.evaluation.cases import Inputs, Scale
from benchmarks.evaluation.report import Content, chosen, evaluate
from simulator.llm_trace import make_requests
from simulator.traces import make_recordings

RANGES = tomllib.loads((Path(__file__).parent / "ranges.toml").read_text())["range"]
#: As the header of ranges.toml says.
SLICE = Scale("slice", seeds=3, interactions=6, divisor=32, mopd_divisor=16)


@pytest.mark.slow
@pytest.mark.long
def test_a_slice_of_the_evaluation_is_in_its_ranges():
    figures = list(dict.fromkeys(each["figure"] for each in RANGES))
    inputs = Inputs(make_recordings(60, 0), make_requests(2000, 0), "made up")

    report = evaluate(Content(SLICE, chosen(figures)), inputs)

    found = {
        (figure.id, series.name, x): value.mean
        for figure in report.figures
        for series in figure.series
        for x, value in series.points
    }
    outside = [
        {**each, "now": round(now, 3)}
        for each in RANGES
        if not each["low"]
        <= (now := found[each["figure"], each["system"], each["at"]])
        <= each["high"]
    ]
    assert outside == []
