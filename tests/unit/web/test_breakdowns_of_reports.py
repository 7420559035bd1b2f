"""A report breaks finished actions down by phase, family and granted count."""

from __future__ import annotations

from typing import Any

from tangram_web.reports.breakdowns import (
    FinishedRow,
    family_times,
    granted_counts,
    phase_times,
)


def row(seconds: float, family: str | None = "test", **changed: Any) -> FinishedRow:
    """Return an action that waited half of its time."""
    cost, units = {"cpu": [1, 2, 4]}, {"cpu": 2}
    made = FinishedRow(
        "exec", family, "completed", 0, cost, units, seconds, seconds / 2, 0.0, seconds / 2
    )
    return made._replace(**changed)


def test_phases_add_up_to_act() -> None:
    times = {each.phase: each for each in phase_times([row(2.0), row(4.0), row(6.0)])}

    assert times["act"].mean == 4.0
    assert times["act"].p50 == 4.0
    assert sum(times[name].mean for name in ("queue", "overhead", "execution")) == 4.0
    assert phase_times([]) == []


def test_families_are_ordered_by_their_time_and_count_failures() -> None:
    rows = [row(1.0, "edit"), row(9.0, exit_code=137), row(2.0, None, outcome="timeout")]

    found = family_times(rows)

    assert [(each.family, each.failed) for each in found] == [("test", 1), ("exec", 1), ("edit", 0)]
    assert sum(each.share for each in found) == 1.0


def test_only_actions_with_several_counts_show_what_they_got() -> None:
    ranged = row(4.0, cost={"cpu": {"min": 1, "max": 8}, "gpu": [1]}, units={"cpu": 8, "gpu": 1})
    rows = [row(2.0), row(4.0), row(8.0, units={"cpu": 4}), row(1.0, cost={"cpu": [1]}), ranged]

    found = [(each.feasible, each.granted, each.actions) for each in granted_counts(rows)]

    assert found == [("1 to 8", 8.0, 1), ("1, 2, 4", 2.0, 2), ("1, 2, 4", 4.0, 1)]
