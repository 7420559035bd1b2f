"""Rows of headlines: each printed number has its claim, ours, a verdict, a cause with numbers, and its maps."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from benchmarks import record
from benchmarks.docker_loads import LOADS, MEAN_SECONDS, arrivals
from benchmarks.evaluation.cases import FULL, QUICK, STANDARD, Case, Inputs, Scale
from benchmarks.evaluation.checkpoint import Kept
from benchmarks.evaluation.estimate import UNKNOWN, Estimate, estimate, rate
from benchmarks.evaluation.findings import Findings, of_report, of_stored
from benchmarks.evaluation.headline_sweeps import SWEEPS, chosen
from benchmarks.evaluation.headlines import CODING, MOPD, SEARCH
from benchmarks.evaluation.page import stored_html
from benchmarks.evaluation.report import Content, Report, content, evaluate
from benchmarks.evaluation.rows import COLUMNS, POLICIES, ROWS
from benchmarks.evaluation.runs import Done, Job
from benchmarks.evaluation.scale_checks import CHECKS, ScalePair
from benchmarks.evaluation.short_form import BEGIN, DOCUMENT, END, table, with_table
from benchmarks.evaluation.stored_maps import read_map, stored
from benchmarks.evaluation.verdicts import Kind
from simulator.figures import Claim, Figure, interval
from simulator.llm_trace import make_requests
from simulator.traces import make_recordings

#: What ARL-Tangram §6 prints as headlines.
PRINTED = {"1.4 ×", "1.5 ×", "9.0 ×", "2.8 ×", "4.3 ×", "3.1 × at batch 128", "27.7 × at batch 1,536",
           "18.1 ×", "3.4 ×", "101.8 ×", "29 %: 12 of 40 GPUs", "2.0 ×", "3.0 ×", "1.8 ×", "2 %",
           "about 25 %"}  # fmt: skip


def findings(value: float) -> Findings:
    """Return findings in which every headline came out as ``value``, without maps."""
    values = {
        f"{column}: {row.measure.format(policy=policy)}": interval([value, value + 0.5])
        for row in ROWS
        for column in COLUMNS
        for policy in POLICIES
    }
    return Findings("full", 3, "made up <trace>", values)


def test_every_headline_of_the_paper_has_a_row_of_its_own():
    assert {row.printed for row in ROWS} == PRINTED
    assert len({row.id for row in ROWS}) == len(ROWS) == len(PRINTED)


def test_rows_read_claims_that_the_report_makes():
    made = {
        f"{each.what}, {each.rival} over paper" if each.rival else f"{each.what}, paper"
        for each in (*CODING, *MOPD, *SEARCH)
    } | {"share of 40 GPUs for the ACT of sglang(4), paper"}

    assert {row.measure.format(policy="paper") for row in ROWS} <= made


def test_every_outcome_has_a_sweep_of_its_printed_number():
    known = {sweep.id: sweep for sweep in SWEEPS}

    for row in ROWS:
        assert bool(row.sweeps) == row.is_outcome
        for name in row.sweeps:
            assert known[name].paper == (1.0 if row.lower else row.wanted)


def test_a_cause_is_shown_only_with_all_of_its_numbers():
    row = next(each for each in ROWS if each.id == "coding-rewards")

    assert "a ratio of 2.25;" in row.cause.filled(findings(2.0))
    assert row.cause.filled(replace(findings(2.0), values={})) == ""


def test_every_cause_has_a_place_for_each_of_its_numbers():
    for row in ROWS:
        assert row.cause.text.count("{}") == len(row.cause.numbers) > 0


def test_verdicts_of_rows_change_with_the_data():
    row = next(each for each in ROWS if each.id == "mopd-half")

    assert row.verdict(findings(3.4)).kind is Kind.REACHED
    assert row.verdict(findings(3.0)).kind is Kind.UNDECIDED
    assert row.verdict(findings(2.0)).kind is Kind.MISSED
    assert row.verdict(replace(findings(2.0), values={})).kind is Kind.NOT_SIMULATED


class _Page(HTMLParser):
    """Checks that what is opened is closed, and collects ids and links."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)
        known = dict(attrs)
        self.ids += [found for found in [known.get("id")] if found]
        self.links += [found[1:] for found in [known.get("href")] if found]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_has_claim_numbers_verdict_cause_and_map_of_each_row():
    page = stored_html(of_stored())

    shapes = _Page()
    shapes.feed(page)
    assert shapes.open == []
    assert shapes.links == [f"row-{row.id}" for row in ROWS]
    assert set(shapes.links) <= set(shapes.ids)
    assert page.count("<blockquote>") == page.count("Verdict:") == page.count("Cause:") == len(ROWS)
    assert page.count("<svg") >= 6
    assert page.count("Percentiles of the time of a trajectory") == 3
    assert "Measured, not simulated" in page


def test_the_page_shows_cells_at_both_sizes_and_how_far_they_are_apart():
    pair = ScalePair("ACT <of> a cell", interval([2.0, 3.0]), interval([4.0]), 0.6)

    page = stored_html(replace(findings(2.0), pairs=(pair,)))

    assert "ACT &lt;of&gt; a cell</td>" in page
    assert "<td>+60.0%</td><td>intervals are apart</td>" in page


def test_rows_of_which_nothing_came_out_are_not_shown():
    row = next(each for each in ROWS if each.id == "search-step")
    one = {f"calibrated: {row.measure.format(policy='paper')}": interval([1.6])}

    page = stored_html(replace(findings(2.0), values=one))

    assert [each.id for each in ROWS if f'id="row-{each.id}"' in page] == ["search-step"]


def test_a_report_without_headlines_has_no_section_of_them(tmp_path):
    empty = Report("quick", 2, 16, 8, "made up", (), ())

    assert of_report(empty, tmp_path).values == {}


def test_findings_of_a_report_are_its_claims_and_maps(tmp_path):
    claim = Claim("recorded: x, paper", "2", interval([3.0]))
    shown = Figure(id="headlines-x", title="", x="", y="", series=(), claims=(claim,))
    other = Figure(
        id="8a", title="", x="", y="", series=(), claims=(Claim("y", "2", interval([1.0])),)
    )
    report = Report("full", 3, 1, 9, "made up", (shown, other), ())

    found = of_report(report, tmp_path)

    assert found.values == {"recorded: x, paper": interval([3.0])}
    assert (found.maps, found.loads) == ({}, {})


def test_a_stored_map_is_read_back():
    drawn = of_stored().maps["coding-pods"]

    assert read_map(stored({"it": drawn})["it"]) == drawn


def test_the_document_has_the_table_of_the_stored_results():
    text = DOCUMENT.read_text()

    assert with_table(text, table(of_stored())) == text, (
        "run python -m benchmarks.evaluation.short_form"
    )


def test_a_document_without_markers_is_refused():
    with pytest.raises(ValueError, match="lacks a marker"):
        with_table(BEGIN, "table")
    assert with_table(f"a\n{BEGIN}old\n{END}b\n", "new\n") == f"a\n{BEGIN}\nnew\n\n{END}b\n"


def test_full_scale_has_headlines_sweeps_and_cells_at_both_sizes():
    whole, some = content(FULL, []), content(FULL, ["9-left"])

    assert {plan.id.partition("-")[0] for plan in whole.plans} == {"headlines", "steps"}
    assert (len(whole.sweeps), len(whole.checks)) == (len(SWEEPS), 3)
    assert whole.small == replace(STANDARD, seeds=FULL.seeds, interactions=FULL.interactions)
    assert [plan.id for plan in some.plans] == ["9-left"]
    assert (some.sweeps, some.checks) == ((), ())


def test_full_scale_averages_the_rows_of_the_end_to_end_section_over_ten_steps():
    averaged = {each.what for each in (*CODING, *MOPD, *SEARCH) if each.steps(FULL) == 10}

    assert {
        "ACT at batch 1,280",
        "interactions at batch 1,280",
        "rewards at batch 1,280",
    } < averaged
    assert next(each for each in CODING if each.rival == "fixed(16)").steps(FULL) == 1
    assert CODING[0].steps(STANDARD) == 1


def test_headlines_of_one_title_and_other_steps_share_no_line():
    kubernetes = CODING[0]
    fixed = next(each for each in CODING if each.rival == "fixed(16)")

    assert kubernetes.what == fixed.what
    assert kubernetes.line(FULL, "recorded") != fixed.line(FULL, "recorded")
    assert kubernetes.line(QUICK, "recorded") == fixed.line(QUICK, "recorded")


def test_checks_are_cells_of_sweeps_at_both_sizes():
    for check in CHECKS:
        assert (check.x, check.y) in check.of().places()
        assert {case.larger_nodes for case in check.cases(FULL)} == {0}
        assert len(check.cases(FULL)) == len(check.cases(STANDARD)) == 6


@pytest.mark.slow
def test_sweeps_and_cells_at_both_sizes_are_simulated_once_and_kept(tmp_path):
    inputs = Inputs(make_recordings(4, 0), make_requests(20, 0), "made up")
    scale = Scale("tiny", seeds=1, interactions=3, divisor=64)
    wanted = Content(scale, (), chosen(["coding-pods"], small=True), CHECKS[:1])
    path, progress, left = tmp_path / "kept.jsonl", list[Done](), list[int]()

    def simulated() -> Report:
        kept = {each: Kept(path, inputs, each) for each in wanted.cases()}
        return evaluate(
            wanted, inputs, kept=kept, progress=progress.append,
            planned=lambda jobs: left.append(len(jobs)),
        )  # fmt: skip

    first, again = simulated(), simulated()

    assert again == first
    assert set(first.maps) == {"coding-pods"}
    assert len(first.maps["coding-pods"]["cells"]) == 9
    assert [pair.what.partition(";")[2] for pair in first.pairs] == [
        " pods a node 110, share of acting 0.2"
    ]
    # Nine pods and three of paper's on the small grid, and the check: a row of its own, at both sizes.
    assert left == [9 + 3 + 2 + 2, 0]
    assert progress[-1] == Done(16, 16, 1.0)


def _jobs(scale: Scale, *policies: str) -> dict[Job, int]:
    return {Job(scale, Case(policy, 2)): 600 for policy in policies}


def test_an_estimate_adds_up_actions_over_the_stored_rates():
    rates = {("ai-coding", "paper"): 100.0, ("ai-coding", "kubernetes(110)"): 10.0}

    found = estimate(_jobs(FULL, "paper", "kubernetes(40 pods)"), rates, jobs=2)

    assert found == Estimate(2, 1200, 33.0)
    assert str(found) == "2 simulations of 1,200 actions, less than a minute"
    assert str(Estimate(2, 1200, 600.0)).endswith("about 10 min")


def test_an_unknown_policy_is_as_fast_as_others_of_its_workload():
    rates = {("mopd", "paper"): 10.0, ("mopd", "sglang(4)"): 30.0}

    assert rate(rates, "mopd", "malleable") == pytest.approx(15.0)
    assert rate({}, "mopd", "malleable") == UNKNOWN


@pytest.mark.parametrize("load", LOADS)
def test_actions_of_a_measurement_add_up_to_its_load(load):
    planned = arrivals(load, cores=2, seconds=60.0, seed=1)

    assert sum(each.busy_seconds for each in planned) == pytest.approx(load * 120)
    assert len(planned) == round(load * 120 / MEAN_SECONDS)
    assert all(0 <= each.at_seconds <= 60 for each in planned)
    assert planned == sorted(planned, key=lambda each: each.at_seconds)


def test_the_document_is_linked_from_the_readme_and_the_simulator():
    root = DOCUMENT.parents[1]
    for name in ("README.md", "docs/simulator.md"):
        assert re.search(r"\]\((docs/)?evaluation\.md\)", (root / name).read_text()), name


def test_the_document_says_where_stored_numbers_are_older_than_the_code():
    old, new = "2026-11-28T20:19:00Z", "2026-11-29T08:00:00Z"

    assert "rows of MOPD are older than the code" in table(replace(findings(2.0), stored_at=old))
    assert "older than the code" not in table(replace(findings(2.0), stored_at=new))


def test_a_stored_command_names_files_without_their_folders(tmp_path, monkeypatch):
    given = [
        "evaluation",
        "--scale",
        "full",
        "--trace",
        "/data/here/agents.jsonl",
        "--kept",
        "a/kept.jsonl",
    ]
    monkeypatch.setattr(sys, "argv", given)

    record.name_paths()
    path = record.store("evaluation-full", {}, folder=tmp_path, module="evaluation")

    assert path.name == "evaluation-full.json"
    assert json.loads(path.read_text())["command"] == (
        "python -m benchmarks.evaluation --scale full --trace agents.jsonl --kept kept.jsonl"
    )
