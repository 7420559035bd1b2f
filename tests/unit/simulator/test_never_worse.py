"""The sweep that says whether a policy is ever worse than its rivals."""

from __future__ import annotations

from dataclasses import replace

import pytest

from domain.errors import InvalidRequest
from simulator.gpu_sweep import LEARNED, GpuCell, GpuRow, gpu_cells, gpu_sweep
from simulator.llm_trace import make_requests
from simulator.paired import PairedRow, above, geometric, worse
from simulator.sweep import Cell, Row, cells, paired, shortened, sweep
from simulator.traces import make_recordings
from simulator.workloads.mopd import Mopd

CELL = Cell(1, 4, 2.0, "light")


def acts_of(workload):
    """Return the actions that a workload of single calls submits."""
    found = []
    for trajectory in next(iter(workload.steps())):
        program = trajectory.program()
        next(program)
        found.append(program.send(None))
    return found


def a_row(**act_seconds: float) -> Row:
    return Row(CELL, act_seconds)


def test_a_grid_is_the_product_of_its_axes():
    grid = cells(clusters=[(1, 16), (5, 256)], loads=[0.5, 2.0], rewards=["light"], seeds=[0, 1])

    assert len(grid) == 8
    assert {cell.batch for cell in grid} == {8, 32, 640, 2560}


def test_a_policy_is_held_against_the_best_of_its_rivals():
    row = a_row(mine=6.0, slow=9.0, quick=5.0)

    assert row.ratio("mine", ["mine", "slow", "quick"]) == pytest.approx(1.2)
    assert row.ratio("quick", ["mine", "slow", "quick"]) < 1


def test_a_policy_without_rivals_cannot_be_judged():
    with pytest.raises(InvalidRequest, match="no rival"):
        a_row(mine=6.0).ratio("mine", ["mine"])


def test_rows_of_one_cell_are_paired_by_seed():
    rows = [
        Row(replace(cell, seed=seed), {"mine": 1.0 + seed}, {"srpt": 0.5})
        for cell in (CELL, Cell(1, 4, 0.5, "light"))
        for seed in (0, 1)
    ]

    crowded, idle = paired(rows)

    assert crowded == PairedRow(CELL, {"mine": [1.0, 2.0]}, {"srpt": [0.5, 0.5]})
    assert idle.act_seconds == {"mine": [1.0, 2.0]}


def test_a_share_is_a_part_of_what_the_reference_saves_over_the_smallest_counts():
    row = PairedRow(
        CELL,
        {"minimum": [10.0, 10.0], "mine": [7.0, 8.0], "slow": [11.0, 11.0]},
        {"srpt": [5.0, 5.0], "loose": [10.0, 11.0]},
    )

    assert row.share("mine", "srpt") == pytest.approx(0.5)
    assert row.share("slow", "srpt") == pytest.approx(-0.2)
    assert row.share("mine", "loose") is None


def test_a_paired_row_without_rivals_cannot_be_judged():
    with pytest.raises(InvalidRequest, match="no rival"):
        a_gpu_row(mine=[1.0, 1.0]).ratio("mine", ["mine"])


def test_shortened_recordings_keep_their_first_steps():
    (recording,) = make_recordings(1, 0)

    (short,) = shortened([recording], 2)

    assert short.steps == recording.steps[:2]


def test_a_sweep_measures_every_policy_in_every_cell():
    recordings = shortened(make_recordings(4, 0), 5)
    reported: list[Row] = []

    rows = sweep(recordings, [CELL, Cell(1, 4, 0.5, "light")], ["minimum"], done=reported.append)

    crowded, idle = rows
    assert reported == rows

    assert crowded.act_seconds["minimum"] > 0
    assert idle.act_seconds.keys() == {"minimum"}


@pytest.mark.slow
def test_cells_simulated_at_once_are_those_simulated_one_by_one():
    recordings = shortened(make_recordings(4, 0), 5)
    grid = [CELL, Cell(1, 4, 0.5, "light"), Cell(2, 2, 1.0, "heavy")]

    assert sweep(recordings, grid, ["minimum"], jobs=2) == sweep(recordings, grid, ["minimum"])


GPU_CELL = GpuCell(call_seconds=1.0, gpus=2, load=0.5, seeds=3, calls=8)


def a_gpu_row(**act_seconds: list[float]) -> GpuRow:
    return GpuRow(GPU_CELL, act_seconds)


def test_a_ratio_on_gpus_pairs_the_seeds_of_the_best_rival():
    row = a_gpu_row(mine=[1.1, 2.2, 4.4], other=[1.0, 2.0, 4.0], slow=[9.0, 9.0, 9.0])

    ratio = row.ratio("mine", ["other", "slow"])

    assert row.best(["other", "slow"]) == "other"
    assert (ratio.mean, ratio.low, ratio.high) == pytest.approx((1.1, 1.1, 1.1))


def test_an_interval_of_ratios_is_that_of_student():
    """Logarithms 0 and 2 x: mean x, deviation x · √2, half of the interval 12.706 · x."""
    ratio = geometric([1.0, 1.21])

    assert ratio.mean == pytest.approx(1.1)
    assert ratio.low == pytest.approx(1.1 ** (1 - 12.706))
    assert ratio.high == pytest.approx(1.1 ** (1 + 12.706))
    alone = geometric([2.0])
    assert alone.mean == pytest.approx(2.0)
    assert (alone.low, alone.high) == (0.0, float("inf"))


@pytest.mark.parametrize(
    ("mine", "is_worse"),
    [
        ([1.01, 1.01, 1.01], False),
        ([1.03, 1.04, 1.05], True),
        ([0.7, 1.0, 1.7], False),
        ([0.5, 0.5, 0.5], False),
    ],
    ids=["within the limit", "beyond it", "seeds disagree", "better"],
)
def test_a_cell_on_gpus_is_worse_beyond_the_limit_where_seeds_agree(mine, is_worse):
    row = a_gpu_row(mine=mine, other=[1.0, 1.0, 1.0])

    assert [each for each, _ in worse([row], "mine", ["other"])] == [row] * is_worse


def test_a_cell_in_which_seeds_disagree_is_above_the_limit_but_not_worse():
    row = a_gpu_row(mine=[0.9, 1.0, 1.7], other=[1.0, 1.0, 1.0])

    assert [each for each, _ in above([row], "mine", ["other"])] == [row]
    assert worse([row], "mine", ["other"]) == []


def test_a_sweep_on_gpus_measures_every_policy_with_every_seed():
    assert len({*gpu_cells()}) == len(gpu_cells()) > 10
    requests = make_requests(20, 0)
    reported: list[GpuRow] = []

    (row,) = gpu_sweep(requests, [GPU_CELL], ["minimum", "fixed(2)"], done=reported.append)

    assert reported == [row]
    assert len(row.act_seconds["minimum"]) == GPU_CELL.seeds
    assert row.act_seconds["minimum"] == row.act_seconds["fixed(2)"]
    assert LEARNED not in row.act_seconds
    assert all(
        bound <= act
        for name in ("no waiting", "srpt")
        for bound, act in zip(row.bounds[name], row.act_seconds["minimum"], strict=True)
    )


def test_the_default_policy_is_measured_with_learned_durations_as_well():
    (row,) = gpu_sweep(make_requests(20, 0), [GPU_CELL], ["malleable"])

    assert len(row.act_seconds[LEARNED]) == GPU_CELL.seeds


def test_calls_of_a_gpu_cell_bring_its_load():
    requests = make_requests(40, 0)
    scene = GpuCell(1.0, 8, 0.5, calls=40).scene(requests, seed=0)

    seconds = [act.work.base_seconds for act in acts_of(scene.workload)]

    assert sum(seconds) / len(seconds) == pytest.approx(1.0)
    assert isinstance(scene.workload, Mopd)
    assert scene.workload.rollout_seconds == pytest.approx(40 / (0.5 * 8))
