"""Measures of two sides: which there are, what they say, and the sentence above them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from domain.errors import InvalidRequest
from tangram_web.compare.comparison import compare, verdict, with_beside
from tangram_web.compare.sides import ActionRow, SideRows, instant_of, rows_of, side_of, window_side
from tangram_web.compare.statistics import DifferenceFinding
from tangram_web.live.access import Sight
from tangram_web.live.rollups.histogram import BINS

NOON = datetime(2026, 11, 28, 12, tzinfo=UTC)


def side(
    count: int = 60, *, queue: float = 1.0, cores: float = 2.0, failed: int = 0, **more: Any
) -> SideRows:
    """Actions of ten trajectories; each executes for about a second."""
    rows = []
    for number in range(count):
        begun = NOON + timedelta(seconds=number)
        execution = 1.0 + number % 7 / 100
        act = queue + execution
        rows.append(ActionRow(
            "default", f"t{number % 10}", f"act_{number}", queue, 0.0, execution, act, {"cpu": cores},
            None, {"cpu_seconds": 0.5}, "completed", int(number < failed), begun,
            begun + timedelta(seconds=act),
        ))  # fmt: skip
    return side_of(rows, more.pop("name", "side"), "actions", **more)


def test_each_measure_says_whether_b_is_better():
    found = compare(side(queue=2.0, failed=9), side(90, queue=1.0, cores=1.0, name="fast"))

    said = {each.name: each.finding for each in found.measures}
    assert said["ACT, mean"] is said["Queue, mean"] is DifferenceFinding.BETTER
    assert said["Overhead, mean"] is DifferenceFinding.UNCLEAR
    assert said["Core-hours granted per 1,000 actions"] is DifferenceFinding.BETTER
    assert said["Core-hours measured per 1,000 actions"] is DifferenceFinding.UNCLEAR
    assert said["Exit code not 0"] is DifferenceFinding.BETTER
    assert said["Not completed"] is DifferenceFinding.UNCLEAR
    assert {"Saved of a reservation", "Actions completed per minute"} <= said.keys()
    assert verdict(found).startswith(
        "fast completed actions 33 % sooner (33 to 33 %), mostly by shorter queues"
    )


def test_equal_sides_show_no_clear_difference():
    found = compare(side(), side())

    assert {each.finding for each in found.measures} == {DifferenceFinding.UNCLEAR}
    assert "no clear difference" in verdict(found)


def test_a_side_without_actions_is_no_error():
    found = compare(side(0), side())

    assert {each.finding for each in found.measures} == {DifferenceFinding.UNKNOWN}
    assert "nothing to compare" in verdict(found)


def window(**columns: Any) -> SideRows:
    rows: dict[str, Any] = {"trajectory": list(range(6)), "overhead": [0.0] * 6, "cores": [1.0] * 6,
            "queue": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "execution": [1.0] * 6}  # fmt: skip
    return window_side({**rows, **columns}, "balanced", "a window", "sim_1", simulated=True)


def test_runs_of_one_window_are_compared_action_by_action():
    shorter = window(queue=[0.9, 1.9, 2.9, 3.9, 4.9, None])

    found = compare(window(), shorter)

    assert found.paired
    act = found.measures[0]
    # The action that had not ended on one side counts on neither.
    assert act.difference.a == 4.0
    assert act.difference.b == pytest.approx(3.9)
    assert act.finding is DifferenceFinding.BETTER
    assert "would complete actions" in verdict(found)
    assert with_beside(found, window()).measures[0].beside == pytest.approx(4.5)


def test_histograms_take_the_place_of_rows():
    counts = np.zeros(BINS, dtype=np.int64)
    counts[100] = 50
    binned = dict.fromkeys(("queue", "overhead", "execution", "act"), counts)
    old = SideRows("old", "from histograms", binned=binned)

    found = compare(old, side())

    assert len(old) == 50
    assert [each.name for each in found.measures][:4] == [
        "ACT, mean",
        "ACT, p50",
        "ACT, p95",
        "ACT, p99",
    ]
    assert found.measures[0].finding is DifferenceFinding.WORSE
    assert "Trajectory, mean" not in [each.name for each in found.measures]


@pytest.mark.parametrize("text", ["", "task", "task:", "node:n1", "range:now", "range:5..5", "range:x..9",
                                  "range:-1..9", "range:nan..9", "revision:x", "task:\0", "range:1e308..1e309"])  # fmt: skip
def test_what_names_no_side_is_refused(text: str):
    with pytest.raises(InvalidRequest):
        rows_of(text, Sight())


@pytest.mark.parametrize(
    "text", ["1764338400", "2025-11-28T14:00:00Z", "2025-11-28T14:00", "2025-11-28T15:00+01:00"]
)
def test_instants_are_seconds_or_iso(text: str):
    assert instant_of(text) == 1764338400.0
