"""Calibrated workloads have the means that ARL-Tangram prints, and see none of its results."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.errors import InvalidRequest
from simulator.cli import verbs
from simulator.llm_trace import make_requests
from simulator.overheads import Overheads
from simulator.traces import make_recordings
from simulator.workloads import calibrated, calibration, mix_from_ratios
from simulator.workloads.calibrated import CALIBRATIONS, Size
from simulator.workloads.calibration import CODING, MOPD, SEARCH, PrintedMeans, arrival_seconds
from simulator.workloads.mix_from_ratios import PrintedRatios
from simulator.workloads.program import Act, Think

RECORDINGS = make_recordings(30, 0)
REQUESTS = make_requests(60, 0)
SOURCE = Path(calibration.__file__)
SIZE = Size(batch=30, rl_steps=1)
#: What the paper claims against baselines: no calibration may hold one of them.
CLAIMED = {4.3, 4.33, 9.0, 2.8, 3.1, 27.7, 1.89, 1.4, 1.5, 18.1, 3.4, 101.8, 0.29, 0.712, 2.0, 3.0, 1.8}  # fmt: skip


def test_calibration_imports_neither_results_nor_baselines():
    tree = ast.parse(SOURCE.read_text())
    imported = {
        node.module if isinstance(node, ast.ImportFrom) else name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }

    assert imported == {
        "__future__", "math", "collections.abc", "dataclasses", "typing", "domain.errors",
    }  # fmt: skip


def test_no_number_of_the_declaration_is_a_claimed_ratio():
    written = {
        node.value
        for node in ast.walk(ast.parse(SOURCE.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, float)
    }

    assert written & CLAIMED == set()


@given(
    st.floats(1.5, 30.0), st.floats(0.2, 1.4), st.floats(0.05, 0.95),
)  # fmt: skip
def test_other_claimed_ratios_change_the_mix_alone(interactions, reward, share):
    """Whatever the ratios are, every parameter but the share of rewards is that of the calibrated workload."""
    claimed = PrintedRatios(interactions, reward, share * reward + (1 - share) * interactions)
    before = dict(CALIBRATIONS)

    try:
        mixed = mix_from_ratios.mix_from_ratios(claimed)
    except InvalidRequest:  # rounding alone makes another order of these
        return

    assert mixed["reward_share"] == pytest.approx(share)
    rest = [each for each in mixed.parameters if each.name != "reward_share"]
    assert rest == [each for each in CODING.parameters if each.name != "reward_share"]
    assert before == CALIBRATIONS


def test_the_printed_ratios_are_a_mix_of_three_quarters_rewards():
    share = CALIBRATIONS["ai-coding(mix-from-ratios)"].parameter("reward_share")

    assert share.value == pytest.approx(4.7 / 6.2)
    assert share.low < share.value < share.high


def test_a_total_outside_of_its_parts_is_no_mix():
    with pytest.raises(InvalidRequest, match="a total of 12 is no mix of"):
        PrintedRatios(total=12.0).reward_share()


@pytest.mark.parametrize("declared", CALIBRATIONS.values(), ids=list(CALIBRATIONS))
def test_every_parameter_has_a_source_and_a_value_that_the_print_allows(declared):
    for each in declared.parameters:
        assert each.allows(each.value), each
        assert re.search(r"§\d|Table \d|Figure \d|not printed", each.source), each
        assert each.unit


@settings(max_examples=20)
@given(
    st.floats(0.1, 3.0), st.floats(0.1, 0.9), st.floats(0.05, 0.95), st.sampled_from([1, 4, 16]),
)  # fmt: skip
def test_ai_coding_has_the_declared_means(execution, acting, share, units):
    declared = CODING.with_values(
        {"execution_seconds": execution, "acting_share": acting, "reward_share": share,
         "reward_units": units, "growth": 0.0}
    )  # fmt: skip
    workload = calibrated.ai_coding(RECORDINGS, SIZE, declared)
    turns = fmean(len(each.steps) for each in RECORDINGS)
    jitter = 1.0317  # exp(0.25² / 2), the mean of the factor of a copy

    acted = jitter * fmean(
        sum(step.duration_seconds for step in each.steps) for each in workload.recordings
    )
    thought = jitter * fmean(
        sum(step.think_seconds for step in each.steps) for each in workload.recordings
    )
    rewards = workload.rewards
    mean = rewards.median_seconds * 2.718281828 ** (
        (rewards.sigma**2 + rewards.member_sigma**2) / 2
    )
    rewarded = mean / (rewards.elasticity.efficiency(units * 1000) * units)

    assert (acted + rewarded) / (turns + 1) == pytest.approx(execution, rel=1e-3)
    assert rewarded / (acted + rewarded) == pytest.approx(share, rel=1e-3)
    assert (acted + rewarded) / (acted + rewarded + thought) == pytest.approx(acting, rel=1e-3)


def test_think_times_grow_with_the_step():
    declared = CODING.with_values({"growth": 0.1})
    workload = calibrated.ai_coding(RECORDINGS[:1], Size(1, 3), declared)
    workload = replace(workload, jitter_sigma=0.0)
    thought = [
        sum(move.seconds for move in rollouts[0].program() if isinstance(move, Think))
        for rollouts in workload.steps()
    ]

    assert thought[1] == pytest.approx(1.1 * thought[0])
    assert thought[2] == pytest.approx(1.21 * thought[0])


def test_a_call_of_mopd_takes_what_is_printed_on_four_gpus():
    workload = calibrated.mopd(REQUESTS, Size(len(REQUESTS), 1), MOPD)
    calls = [
        move.work.seconds(4000)
        for rollout in next(workload.steps())
        for move in rollout.program()
        if isinstance(move, Act)
    ]

    assert fmean(calls) == pytest.approx(0.621)


def test_restores_fill_the_overhead_that_the_hops_leave():
    model = calibrated.models(MOPD)["teacher-0"]

    assert model.restore_seconds(4) == pytest.approx((0.201 - 0.024) / 0.5)
    assert model.restore_seconds(2) > model.restore_seconds(4) > model.restore_seconds(8)


def test_calls_that_arrive_slower_than_they_are_served_do_not_wait():
    """Half a minute of work for all GPUs over half a minute; twice as much waits 15 s on average."""
    calm, crowded = PrintedMeans(1.0, 0.0, 0.0), PrintedMeans(2.0, 15.0, 0.0)

    assert arrival_seconds(300, calm, 4, 40) == pytest.approx(30.0)
    assert arrival_seconds(300, crowded, 4, 40) == pytest.approx(30.0)


def test_hops_add_up_to_the_printed_overhead():
    hops = calibrated.overheads(CODING)

    assert hops.start_seconds + hops.report_seconds == pytest.approx(0.024)
    assert hops.submit_seconds == Overheads().submit_seconds


def test_limits_of_deep_search_are_declared():
    assert calibrated.limits(SEARCH) == {"api:search": 128, "api:pdf": 256, "api:judge": 64}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"colour": 1.0}, "there is no parameter 'colour'; there are batch, steps"),
        ({"reward_share": -1.0}, "reward_share must be a number ≥ 0, not -1.0"),
        ({"reward_share": 1.5}, r"reward_share lies in \(0, 1\], not at 1.5"),
    ],
)
def test_a_bad_value_is_refused_by_its_name(values, said):
    with pytest.raises(InvalidRequest, match=said):
        calibrated.ai_coding(RECORDINGS, SIZE, CODING.with_values(values))


@pytest.mark.parametrize("workload", list(CALIBRATIONS))
def test_sim_runs_a_calibrated_workload(workload):
    arguments = ["run", "--workload", workload, "--batch", "2", "--nodes", "5", "--quiet"]
    name, value = ("turns", "2") if "search" in workload else ("growth", "0.1")

    done = CliRunner().invoke(verbs, [*arguments, "--set", name, value])

    assert done.exit_code == 0, done.output
    assert "ACT of all actions" in done.output


@pytest.mark.parametrize(
    ("name", "said"),
    [("colour", "there is no parameter 'colour'"), ("batch", "batch is chosen by --batch")],
)
def test_sim_says_which_parameter_cannot_be_set(name, said):
    done = CliRunner().invoke(
        verbs, ["run", "--workload", "mopd(calibrated)", "--set", name, "1", "--quiet"]
    )

    assert done.exit_code == 2
    assert f"mopd(calibrated): {said}" in done.stderr
