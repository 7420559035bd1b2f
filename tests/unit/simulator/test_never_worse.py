"""The sweep that says whether a policy is ever worse than its rivals."""

from __future__ import annotations

import pytest

from domain.errors import InvalidRequest
from simulator.sweep import Cell, Row, cells, shortened, sweep, worse
from simulator.traces import make_recordings

CELL = Cell(1, 4, 2.0, "light")


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


def test_only_rows_beyond_the_margin_are_worse():
    rows = [a_row(mine=1.02, other=1.0), a_row(mine=1.05, other=1.0), a_row(mine=0.5, other=1.0)]

    assert [ratio for _, ratio in worse(rows, "mine", ["other"])] == [1.05]


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
