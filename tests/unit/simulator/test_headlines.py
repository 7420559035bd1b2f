"""Headlines stand on recorded and calibrated workloads, and what was put in is never reproduced."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.evaluation.cases import STANDARD, Case, Inputs, Scale, scene
from benchmarks.evaluation.headlines import CODING, MOPD, PLANS, RL_STEPS, SEARCH, Headline
from benchmarks.evaluation.plans import Context
from benchmarks.evaluation.report import PLANS as REPORTED
from benchmarks.evaluation.runs import simulate
from simulator.llm_trace import make_requests
from simulator.traces import make_recordings

INPUTS = Inputs(make_recordings(4, 0), make_requests(20, 0), "made up")
#: Two trajectories of three interactions.
TINY = Scale("tiny", seeds=1, interactions=3, divisor=1024, mopd_divisor=1024)


def read(value: Any) -> float:
    return float(value)


def context(headline: Headline, rival: float, ours: float) -> Context:
    """Return one in which every case of the rival measures ``rival``."""
    known: Any = defaultdict(lambda: ours)
    for column in headline.columns(STANDARD):
        known |= dict.fromkeys(headline.cases(STANDARD, column, headline.rival), rival)
    return Context(STANDARD, INPUTS, known)


@pytest.mark.parametrize(
    ("headline", "verdicts"),
    [(CODING[0], ["reached", "reached", ""]), (CODING[1], ["reached", "reached", ""]),
     (CODING[2], ["reached", "reached", ""]), (CODING[3], ["reached"] * 3)],
    ids=["4.3", "9.0", "2.8", "3.1"],
)  # fmt: skip
def test_ratios_that_were_put_into_the_mix_have_no_verdict_there(headline, verdicts):
    headline = replace(headline, measure=read)
    grid = headline.grid(STANDARD)

    claims = [
        headline.claim(context(headline, 40.0, 2.0), grid, column, "paper")
        for column in headline.columns(STANDARD)
    ]

    assert [each.verdict for each in claims] == verdicts
    assert [each.ours.mean for each in claims] == [20.0] * 3


def test_a_headline_without_a_rival_is_tangrams_own_measure():
    overhead = replace(CODING[-1], measure=read)

    known: Any = defaultdict(lambda: 0.02)
    grid = overhead.grid(STANDARD)
    claim = overhead.claim(Context(STANDARD, INPUTS, known), grid, "calibrated", "paper")

    assert (claim.ours.mean, claim.verdict) == (0.02, "")


def test_every_headline_is_simulated_on_both_workloads():
    for headline in (*CODING, *MOPD, *SEARCH):
        for column, added in (("recorded", ""), ("calibrated", "(calibrated)")):
            workloads = {case.workload for case in headline.cases(STANDARD, column, "paper")}
            assert workloads == {headline.workload + added}


def test_the_report_has_the_headlines():
    assert {each.id for each in PLANS} <= {each.id for each in REPORTED}


def test_time_of_trajectories_is_drawn_for_each_of_ten_steps():
    plan = next(each for each in PLANS if each.id == "steps-ai-coding")
    results = simulate(plan.cases(TINY), INPUTS, TINY)

    figure = plan.figure(Context(TINY, INPUTS, results))

    assert [each.name for each in figure.series] == [
        "paper p50", "paper p95", "kubernetes(110) p50", "kubernetes(110) p95",
    ]  # fmt: skip
    for series in figure.series:
        assert [x for x, _ in series.points] == [*range(1, RL_STEPS + 1)]
    lower, upper = figure.series[:2]
    assert all(
        low.mean <= high.mean
        for (_, low), (_, high) in zip(lower.points, upper.points, strict=True)
    )


def test_limits_of_calibrated_searches_shrink_with_the_cluster():
    case = STANDARD.case("paper", 2048, workload="deep-search(calibrated)")[0]

    limits = scene(case, INPUTS, STANDARD).cluster.apis

    assert case.batch == 128
    assert limits == {"api:search": 8, "api:pdf": 16, "api:judge": 4}


def test_other_values_of_a_case_reach_its_workload():
    case = Case("paper", 2, workload="mopd(calibrated)", calibration=(("arrival_seconds", 30.0),))
    workload: Any = scene(case, INPUTS).workload

    assert workload.rollout_seconds == 30.0
    assert workload.domains == case.teachers
