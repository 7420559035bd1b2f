"""Sections and figures of fleets: each follows from its own cases, and says what it misses."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.evaluation.page import html
from benchmarks.evaluation.report import Report
from benchmarks.fleets.cases import FIXED, Compared, FleetCase, play
from benchmarks.fleets.plans import FleetContext, FleetPlan, FleetScale
from benchmarks.fleets.report import FAMILY, LEFT_OUT, PLANS, chosen_plans
from benchmarks.fleets.sections import SECTIONS, Row
from domain.errors import InvalidRequest
from simulator.cli import add_evaluation, verbs
from simulator.figures import interval
from simulator.fleets.setting import FleetResult
from simulator.traces import make_recordings

add_evaluation()
SMALL = FleetScale("small", 2, 4)


def a_result(case: FleetCase) -> FleetResult:
    """Return a result that is the shorter the later its policy is in the alphabet."""
    seconds = 1000.0 / (1 + ord(case.policy[0]) - ord("a")) + case.seed
    return FleetResult(
        makespan=seconds, tokens=1000, ends=(seconds / 2, seconds), longest_end=seconds,
        longest_queue=seconds / 4, queue=1.0, computed_tokens=0, cached_tokens=0, preempted=0,
        moves=0, moved_tokens=0, folded_at=None,
    )  # fmt: skip


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.id)
def test_a_figure_follows_from_its_own_cases(plan: FleetPlan):
    results = {case: a_result(case) for case in plan.cases(SMALL)}
    context = FleetContext(SMALL, make_recordings(12, 0), Compared(results, 2))

    figure = plan.figure(context)

    assert figure.series
    page = html(
        Report(
            "small",
            2,
            8,
            10_000,
            "made up",
            (figure,),
            LEFT_OUT,
            paper="Heddle",
            ours=("paper", "hedged"),
        )
    )
    assert "The evaluation of Heddle, simulated" in page
    assert "Measured beside simulated" not in page
    assert "nan" not in page


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_has_the_cases_of_its_rows(name: str):
    section = SECTIONS[name]()
    results = {each: a_result(each) for case in section.cases for each in case.seeds(2)}

    rows = section.rows(Compared(results, 2))

    assert len({row.name for row in rows}) == len(rows)
    assert len({case.label for case in section.cases}) == len(set(section.cases))
    assert any(row.goal is not None for row in rows)


def test_the_best_rival_is_one_system_over_all_seeds():
    ours, slow, fast = (FleetCase(name) for name in ("z", "a", "b"))
    results = {each: a_result(each) for case in (ours, slow, fast) for each in case.seeds(2)}

    found = Compared(results, 2).speedup(ours, slow, fast)

    assert found.mean == pytest.approx(((500 / (1000 / 26)) + (501 / (1000 / 26 + 1))) / 2)


def test_a_goal_of_the_lower_end_is_missed_where_one_seed_misses_it():
    found = interval([0.9, 1.3])

    assert Row("x", found, 1.0, of_low=True).missed
    assert not Row("x", found, 1.0).missed
    assert not Row("x", found).missed


def test_figures_are_named_by_their_family_or_one_by_one():
    assert chosen_plans([FAMILY]) == list(PLANS)
    assert [plan.id for plan in chosen_plans(["heddle-7", "heddle-2", "heddle-7"])] == [
        "heddle-7",
        "heddle-2",
    ]
    with pytest.raises(InvalidRequest, match=r"heddle-99.*heddle-12"):
        chosen_plans(["heddle-99"])


def test_the_report_of_heddle_is_one_command(tmp_path: Path):
    command = [
        "report",
        "--figure",
        "heddle-7",
        "--figure",
        "heddle-5",
        "--scale",
        "quick",
        "--out",
        str(tmp_path),
    ]

    done = CliRunner().invoke(verbs, [*command, "--jobs", "1"])
    wrong = CliRunner().invoke(verbs, ["report", "--figure", "heddle-0", "--out", str(tmp_path)])

    assert done.exit_code == 0, done.output
    assert "8 GPUs as workers" in (tmp_path / "report.html").read_text()
    assert wrong.exit_code == 2
    assert "heddle-0" in wrong.output


def test_degrees_are_planned_from_the_former_batch():
    recordings = make_recordings(20, 0)
    case = FleetCase("rr+cache", (), per_gpu=2, slots=2)

    planned = play(case, recordings)
    fixed = play(FleetCase("rr+cache", FIXED["Fix-1"], per_gpu=2, slots=2), recordings)

    assert planned.tokens == fixed.tokens
    assert planned.makespan != fixed.makespan
