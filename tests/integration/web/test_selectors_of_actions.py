"""Actions that left the loop's memory are answered from their rows."""

from __future__ import annotations

import pytest

from domain.action import ActionState, Kind, Outcome, Timing
from domain.allocation import Placement
from domain.errors import InvalidRequest
from tangram_web.records.models import ActionRecord
from tangram_web.records.projection import project
from tangram_web.records.selectors import action_view, completions
from tests.integration.web.journal import Journal, an_action, an_id

pytestmark = pytest.mark.django_db


def a_history(count: int = 5) -> Journal:
    """Return a journal in which each odd action belongs to another project."""
    journal = Journal()
    for number in range(count):
        journal.run(an_action(number, project=("default", "other")[number % 2]))
    project(journal.entries)
    return journal


def test_view_of_a_finished_action_is_complete():
    a_history(1)

    view = action_view(an_id(0))

    assert view is not None
    assert (view.state, view.outcome) == (ActionState.FINISHED, Outcome.COMPLETED)
    assert (view.units, view.placement) == ({"cpu": 1}, Placement("n1", (0,)))
    assert view.timing == Timing(0.5, 0.25, 1.0, 1.75)
    assert (view.kind, view.project, view.task) == (Kind.NOOP, "default", "task-1")
    assert view.submitted_at == "2023-11-14T22:30:00.500000Z"
    assert view.finished_at == "2023-11-14T22:30:02Z"


@pytest.mark.parametrize("unknown", ["act_unknown", "", "a\0b", "ä" * 1000])
def test_unknown_action_has_no_view(unknown):
    a_history(1)

    assert action_view(unknown) is None


def test_action_of_another_project_has_no_view():
    a_history(2)

    assert action_view(an_id(1), "default") is None
    assert action_view(an_id(1), "other") is not None
    assert action_view(an_id(1)) is not None


def test_completions_are_listed_in_the_order_of_their_end_page_by_page():
    a_history(5)
    seen = []
    cursor = 0
    while True:
        page = completions(None, cursor, 2)
        seen += [view.id for view in page.items]
        cursor = int(page.next)
        if not page.more:
            break

    assert seen == [an_id(number) for number in range(5)]
    assert completions(None, cursor, 2).items == []
    assert completions(None, cursor, 2).next == str(cursor)


def test_completions_show_one_project_only():
    a_history(5)

    assert [view.project for view in completions("other", 0, 10).items] == ["other", "other"]


@pytest.mark.parametrize("cursor", [-1, 2**63])
def test_cursor_that_is_not_ours_is_refused(cursor):
    with pytest.raises(InvalidRequest, match="cursor"):
        completions(None, cursor, 1)


@pytest.mark.parametrize(
    ("rows", "index"),
    [
        (lambda: _completed(None), "action_finished_seq"),
        (lambda: _completed("default"), "action_completions"),
        (lambda: _listed(project="default"), "action_project"),
        (lambda: _listed(task="t"), "action_task"),
        (lambda: _listed(outcome="timeout"), "action_outcome"),
        (lambda: _listed(state="queued", finished_seq=None), "action_live_state"),
    ],
    ids=["all completions", "a project's", "of a project", "of a task", "by outcome", "live"],
)
def test_question_is_answered_from_an_index_in_its_order(rows, index):
    plan = rows().explain()

    assert index in plan
    assert "TEMP B-TREE" not in plan


def _completed(project):
    rows = ActionRecord.objects.filter(finished_seq__gt=5).order_by("finished_seq")
    return rows[:10] if project is None else rows.filter(project=project)[:10]


def _listed(**filters):
    return ActionRecord.objects.filter(**filters).order_by("-pk")[:10]
