"""Totals of a task: steps and ends are summed as actions arrive and end; pages read the totals."""

from __future__ import annotations

from importlib import import_module

import pytest
from django.apps import apps

from domain.action import Outcome
from tangram_web.dashboard.selectors import outcomes_of, steps_of
from tangram_web.explorer.conditions import RowPart, rows_of
from tangram_web.explorer.fields import ACTIONS
from tangram_web.explorer.language import parse
from tangram_web.live.access import Sight
from tangram_web.records.models import ActionRecord, EndRecord, StepRecord, TaskRecord
from tangram_web.records.projection import project
from tests.integration.web.journal import Journal, an_action

pytestmark = pytest.mark.django_db


def lived() -> TaskRecord:
    """Project two finished actions and a waiting one of step 3, and one without a step."""
    journal = Journal()
    journal.run(an_action(1, step=3), reward=1.0)
    journal.run(an_action(2, step=3), outcome=Outcome.TIMEOUT)
    journal.run(an_action(3))
    journal.submit(an_action(4, step=3))
    project(journal.entries)
    return TaskRecord.objects.get()


def test_a_step_counts_its_actions_and_averages_those_that_ended() -> None:
    (step,) = steps_of(lived())

    assert (step["step"], step["actions"]) == (3, 3)
    assert (step["queue"], step["act"], step["reward"]) == (0.5, 1.75, 1.0)
    first = ActionRecord.objects.order_by("id")[0]
    last = ActionRecord.objects.order_by("id")[1]
    assert last.finished_at is not None
    wanted = (last.finished_at - first.submitted_at).total_seconds()
    assert step["seconds"] == pytest.approx(wanted)


def test_ends_are_counted_whether_a_step_is_named_or_not() -> None:
    completed, timeout = outcomes_of(lived())

    assert (completed["outcome"], completed["actions"]) == ("completed", 2)
    assert (timeout["outcome"], timeout["actions"], timeout["act"]) == ("timeout", 1, 1.75)


def test_a_step_none_of_whose_actions_ended_has_no_length() -> None:
    journal = Journal()
    journal.submit(an_action(1, step=1))
    project(journal.entries)

    (step,) = steps_of(TaskRecord.objects.get())

    assert (step["actions"], step["seconds"], step["act"], step["reward"]) == (1, None, None, None)


def test_an_upgrade_makes_the_sums_that_the_projection_would_have_made() -> None:
    task = lived()
    projected = steps_of(task), outcomes_of(task)
    StepRecord.objects.all().delete()
    EndRecord.objects.all().delete()

    import_module("tangram_web.records.migrations.0007_sums_of_steps_and_ends").add_up(apps, None)

    (step,), ends = steps_of(task), outcomes_of(task)
    assert step.pop("seconds") == pytest.approx(projected[0][0].pop("seconds"))
    assert ([step], ends) == projected


@pytest.mark.parametrize("state", ["queued", "granted", "running"])
def test_a_search_for_live_actions_reads_the_index_of_live_ones(state: str) -> None:
    lived()
    rows = rows_of(ACTIONS, RowPart.LIVE, parse(ACTIONS, f"state:{state} task:t"), Sight(), 2e9)

    assert "action_live_state" in rows.order_by("-id")[:51].explain()
    rows = rows_of(ACTIONS, RowPart.LIVE, parse(ACTIONS, f"state:{state}"), Sight(), 2e9)
    assert len(rows) == (1 if state == "queued" else 0)
