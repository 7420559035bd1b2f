"""Costs: requested, granted and used resources, summed as actions end, beside those of a reservation."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from domain.action import Action, Timing
from domain.allocation import Allocation, UsedResources
from domain.decisions import Finish
from domain.ids import ResourceId
from tangram_web.dashboard.costs import bill_of_task, bill_of_trajectory, cost_of_action
from tangram_web.records.models import ActionRecord, TaskRecord, TrajectoryRecord
from tangram_web.records.projection import project
from tests.integration.web.journal import Journal, a_finish, a_report, an_action

pytestmark = pytest.mark.django_db


def ended(action: Action, *allocations: Allocation, seconds: float = 10.0, **given: Any) -> Finish:
    timing = Timing(1.0, 0.0, seconds, seconds + 1.0)
    finish = a_finish(action)
    return msgspec.structs.replace(finish, timing=timing, allocations=allocations, **given)


def cpu(units: float) -> Allocation:
    return Allocation(ResourceId("cpu:n1"), round(units * 1000))


def run(journal: Journal, action: Action, *held: Allocation, used: float | None = None,
        **given: Any) -> None:  # fmt: skip
    if used is not None:
        given["used"] = UsedResources(used, 0.0, 0)
    journal.submit(action)
    journal.grant(action)
    journal.write([a_report(action.id)], [ended(action, *held, **given)])


def test_a_trajectory_that_acts_a_part_of_its_life_saves_the_rest():
    journal = Journal()
    first = an_action(1, trajectory="r", cost={"cpu": (1000, 2000, 4000)})
    run(journal, first, cpu(4), used=20.0)
    journal.at += 97.5
    run(journal, an_action(2, trajectory="r", cost={"cpu": (1000,)}), cpu(1))
    project(journal.entries)

    row = TrajectoryRecord.objects.get()
    (line,) = bill_of_trajectory(row).lines

    assert (line.asked, line.granted) == (20.0, 50.0)
    assert (line.used, line.measured, line.used_share) == (20.0, 40.0, 0.5)
    assert line.reserved == pytest.approx(4 * (row.ended_wall - row.begun_wall))
    assert line.reserved == pytest.approx(400, rel=0.01)
    assert line.saving == pytest.approx(0.875, abs=0.01)


def test_a_task_sums_its_trajectories_and_what_belongs_to_none():
    journal = Journal()
    for number, trajectory in ((1, "r1"), (2, "r2"), (3, None)):
        action = an_action(number, trajectory=trajectory, cost={"gpu": (2000,)})
        run(journal, action, Allocation(ResourceId("gpu:n1"), 2000))
    project(journal.entries)

    bill = bill_of_task(TaskRecord.objects.get())
    (line,) = bill.lines

    assert (line.name, line.granted, line.in_trajectories) == ("GPU-seconds", 60.0, 40.0)
    assert bill.trajectories == 2
    assert line.used_share is None


def test_a_resized_action_costs_the_integral_of_what_it_held():
    journal = Journal()
    action = an_action(1, trajectory="r", cost={"cpu": (1000, 4000)})
    widths = ((0.0, 4000), (5.0, 1000))
    run(journal, action, cpu(1), resizes=1, key_milli_seconds=25_000.0, widths=widths)
    project(journal.entries)

    row = TrajectoryRecord.objects.get()

    assert (row.granted_core_seconds, row.asked_core_seconds, row.peak_cores) == (25.0, 10.0, 4.0)


def test_sums_do_not_depend_on_how_the_journal_is_cut():
    journal = Journal()
    for number in range(6):
        action = an_action(number, trajectory="r", cost={"cpu": (1000,)})
        run(journal, action, cpu(1), used=2.0)
    for entry in journal.entries:
        project([entry])

    row = TaskRecord.objects.get()

    assert (row.granted_core_seconds, row.used_core_seconds, row.peak_cores) == (60.0, 12.0, 1.0)


def test_an_action_says_what_it_held_and_used():
    record = ActionRecord(
        units={"cpu": 1, "gpu": 2}, widths=[[0.0, 4], [5.0, 1]], queue_seconds=1.0, act_seconds=11.0,
        used={"cpu_seconds": 9.0},
    )  # fmt: skip
    assert cost_of_action(record) == [
        ("Core-seconds", "25.0 granted, 9.0 used"), ("GPU-seconds", "20.0 granted"),
    ]  # fmt: skip
